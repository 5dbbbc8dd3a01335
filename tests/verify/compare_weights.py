"""Largest difference between two sets of weights, each a folder for from_pretrained or a file: python ... ONE OTHER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def weights_of(place: Path) -> dict[str, torch.Tensor]:
    """Tensors by name; a folder with a config goes through from_pretrained, which must find every weight in it."""
    if (place / "config.json").exists():
        model, info = AutoModelForCausalLM.from_pretrained(place, dtype="auto", output_loading_info=True)
        assert not info["missing_keys"], info
        assert not info["unexpected_keys"], info
        return dict(model.state_dict())
    if place.is_dir():
        parts = [load_file(path) for path in sorted(place.glob("*.safetensors"))]
        return {name: tensor for part in parts for name, tensor in part.items()}
    found = torch.load(place, map_location="cpu", weights_only=True)
    tensors: dict[str, torch.Tensor] = found.get("model", found)
    return tensors


def main() -> None:
    one, other = (weights_of(Path(name)) for name in sys.argv[1:3])
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
    differences = [float((one[name].float() - other[name].float()).abs().max()) for name in one]
    print(json.dumps({"tensors": len(one), "difference": max(differences), "dtype": str(next(iter(one.values())).dtype)}))


if __name__ == "__main__":
    main()
