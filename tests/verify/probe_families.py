"""Builds the --smoke-test model of each config.json and runs it once: python ... FILE..."""

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


def outcome(path: Path) -> list[Any]:
    """How it went, and the parameters in millions: ok, not built by transformers, or what went wrong."""
    content = json.loads(path.read_text(encoding="utf-8"))
    config = content.get("config", content)
    dropped = ("quantization_config", "auto_map", "id2label", "label2id", "torch_dtype", "dtype")
    config = {key: value for key, value in config.items() if key not in dropped}
    if config.get("model_type") not in transformers.CONFIG_MAPPING:
        return ["not in transformers", 0]
    small = AutoConfig.for_model(**{**config, **tiny_overrides(config)})
    small.use_cache = False
    known = [getattr(transformers, name) for name in dict.fromkeys(AUTO_CLASSES.values())]
    builder = next((auto for auto in known if type(small) in auto._model_mapping), None)
    if builder is None:
        return ["no vocabulary", 0]
    model = builder.from_config(small, dtype=torch.float32)
    tokens = torch.randint(400, (1, 32))
    extra = {"decoder_input_ids": tokens} if small.is_encoder_decoder else {}
    logits = model(input_ids=tokens, **extra).logits
    finite = bool(torch.isfinite(logits).all())
    return ["ok" if finite else "not finite", sum(p.numel() for p in model.parameters()) / 1e6]


def main() -> None:
    answers = {}
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        try:
            answers[Path(name).stem] = outcome(Path(name))
        except (TypeError, ValueError, RuntimeError) as error:
            answers[Path(name).stem] = [f"{type(error).__name__}: {error}"[:300], 0]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
