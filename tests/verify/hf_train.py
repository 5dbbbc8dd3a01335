"""A Hugging Face Trainer over the tiny data, with the ds_config named or without one: ... WEIGHTS STEPS [DS_CONFIG]"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import deepspeed
import numpy as np
import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

SEQUENCE = 64


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Consecutive sequences; the model shifts the labels itself."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.fromfile(path, dtype=np.uint16).astype(np.int64)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // SEQUENCE

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.from_numpy(self.tokens[index * SEQUENCE : (index + 1) * SEQUENCE + 1])
        return {"input_ids": row, "labels": row}


class InOrder(Trainer):
    """Without shuffling."""

    def _get_train_sampler(self, train_dataset: Dataset[dict[str, torch.Tensor]] | None = None) -> Sampler[int]:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)


def main() -> None:
    source, steps, config = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    if config:
        deepspeed.init_distributed(dist_backend="gloo")  # with GPUs TrainingArguments does this, for nccl
    args = TrainingArguments(
        output_dir="out",
        deepspeed=config,
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,  # DeepSpeed's optimizer would decay norms too, the Trainer's does not
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    trainer = InOrder(model=model, args=args, train_dataset=Rows(source / "tokens.bin"))
    trainer.train()
    trainer.save_model("exported")
    if os.environ["RANK"] == "0":
        for entry in trainer.state.log_history[:steps]:
            print(f"step {entry['step']} loss {entry['loss']:.6f} grad_norm {float(entry['grad_norm']):.6f}")
        engine = trainer.model_wrapped
        print(f"engine {type(engine).__name__} stage {engine.zero_optimization_stage() if config else 'none'}")


if __name__ == "__main__":
    main()
