"""Builds a small model of each mixture and lists the modules that hold its expert tensors: python ... FILE..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from app.emit.model_source import AUTO_CLASSES
from app.emit.tiny import tiny_overrides
from app.ingest.hf_config import architecture_from_config

DROPPED = ("quantization_config", "auto_map", "id2label", "label2id", "torch_dtype", "dtype")


def holders(config: dict[str, Any]) -> list[list[str]] | None:
    """For each expert tensor, the classes of the modules around it; None where transformers does not build the model."""
    if config.get("model_type") not in transformers.CONFIG_MAPPING:
        return None
    small = AutoConfig.for_model(**{**config, **tiny_overrides(config)})
    known = [getattr(transformers, name) for name in dict.fromkeys(AUTO_CLASSES.values())]
    builder = next((auto for auto in known if type(small) in auto._model_mapping), None)
    if builder is None:
        return None
    with torch.device("meta"):
        model = builder.from_config(small)
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    found = []
    for name, _ in model.named_parameters():
        parts = name.split(".")
        if "experts" in parts and "shared" not in name:
            found.append([classes[".".join(parts[:depth])] for depth in range(1, len(parts))])
    return found


def main() -> None:
    answers: dict[str, Any] = {}
    for name in sys.argv[1:]:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
        for index, entry in enumerate(content if isinstance(content, list) else [content]):
            config = {key: value for key, value in entry.get("config", entry).items() if key not in DROPPED}
            try:
                model = architecture_from_config(config)
            except Exception:
                continue
            classes = sorted({s.block.moe.class_name for s in model.stacks if s.block.moe})
            if not classes:
                continue
            around = holders(config)
            answers[f"{Path(name).stem}/{index} {model.family}"] = {"classes": classes, "around": around}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
