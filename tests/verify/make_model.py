"""Saves a model with random weights as a folder in Hugging Face's format: python ... CONFIG.json FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    config = AutoConfig.for_model(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(sys.argv[2])


if __name__ == "__main__":
    main()
