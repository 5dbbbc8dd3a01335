"""Lets the Hugging Face Trainer's own code fill in a ds_config with "auto": python ... FILE [FILE...]"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoConfig, TrainingArguments

from tests.emit.jobs import TINY_LLAMA


def filled(path: str) -> dict[str, Any]:
    """The config as the Trainer would hand it to DeepSpeed."""
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        deepspeed=path,
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=5,
        max_grad_norm=0.7,
        learning_rate=1e-4,
        weight_decay=0.2,
        report_to=[],
    )
    model = SimpleNamespace(config=AutoConfig.for_model(**TINY_LLAMA))  # the Trainer only asks for its sizes
    args.hf_deepspeed_config.trainer_config_finalize(args, model, 100)
    config: dict[str, Any] = args.hf_deepspeed_config.config
    return config


def main() -> None:
    print(json.dumps({Path(path).parent.name: filled(path) for path in sys.argv[1:]}))


if __name__ == "__main__":
    main()
