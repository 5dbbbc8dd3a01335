"""Adds up the tensors in checkpoints that emitted scripts wrote, by what they are: python ... FOLDER [FOLDER...]"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def by_torch(folder: Path) -> Counter[str]:
    """Bytes of a checkpoint of torch.distributed.checkpoint."""
    found: Counter[str] = Counter()
    for name, entry in FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata) and not name.startswith("random"):
            kind = "weights" if name.startswith("model") else "step counters" if name.endswith(".step") else "optimizer states"
            found[kind] += entry.size.numel() * entry.properties.dtype.itemsize
    return found


def by_deepspeed(folder: Path) -> Counter[str]:
    """Bytes of a checkpoint of DeepSpeed's engine: every storage once, without the counters."""
    found: Counter[str] = Counter()
    for path in folder.glob("*.pt"):
        kind = "optimizer" if path.name.endswith("optim_states.pt") else "module"
        tensors = tensors_in(torch.load(path, map_location="cpu", weights_only=False))
        found[kind] += sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.ndim}.values())
    return found


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a nested value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def main() -> None:
    folders = map(Path, sys.argv[1:])
    print(json.dumps([by_torch(f) if (f / ".metadata").exists() else by_deepspeed(f) for f in folders]))


if __name__ == "__main__":
    main()
