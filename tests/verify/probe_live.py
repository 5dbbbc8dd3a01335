"""Counts the storages alive while fully_shard trains equal units on pretended ranks: python probe_live.py RANKS COMPUTE REDUCE..."""

from __future__ import annotations

import json
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

UNITS, WIDTH = 6, 256
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class LiveBytes(TorchDispatchMode):
    """Most bytes of storages alive at once since the last ``restart``; a storage that FSDP2 resizes to nothing counts as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak = 0

    def restart(self) -> None:
        """Measure anew from here."""
        self.peak = self.now()

    def now(self) -> int:
        """Bytes alive."""
        alive = [(key, ref()) for key, ref in self.storages.items()]
        self.storages = {key: self.storages[key] for key, storage in alive if storage is not None}
        return sum(storage.nbytes() for _, storage in alive if storage is not None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.storages[storage._cdata] = weakref.ref(storage)
        self.peak = max(self.peak, self.now())
        return out


def peaks(ranks: int, compute: str, reduce: str) -> dict[str, float]:
    """Peaks of forward and backward above the shards, in bytes for each parameter of one unit."""
    mesh = init_device_mesh("cpu", (ranks,))
    units = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(UNITS)]
    model = torch.nn.Sequential(*units)
    policy = MixedPrecisionPolicy(DTYPES[compute], DTYPES[reduce]) if compute != "fp32" else MixedPrecisionPolicy()
    for unit in (*units, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    inputs, out = torch.randn(1, WIDTH), {}
    with LiveBytes() as live:
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            live.restart()
            before = live.peak
            loss = model(inputs).sum()
            out["forward"] = (live.peak - before) / WIDTH**2
            live.restart()
            loss.backward()
            out["backward"] = (live.peak - before) / WIDTH**2
    return out


def main() -> None:
    ranks = int(sys.argv[1])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    print(json.dumps({pair: peaks(ranks, *pair.split("/")) for pair in sys.argv[2:]}))


if __name__ == "__main__":
    main()
