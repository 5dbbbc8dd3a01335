"""The hf_auto dialect: the Trainer fills every "auto" from its arguments and leaves the plan's numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from app.emit.deepspeed import deepspeed_config
from tests.emit.jobs import make_job
from tests.emit.lint import autos
from tests.verify.harness import probe

pytestmark = pytest.mark.files("ds_config.json (hf_auto)", "transformers", "accelerate", "deepspeed")

VARIANTS: dict[str, dict[str, Any]] = {
    "zero2": {"strategy": "zero2"},
    "zero3": {"strategy": "zero3"},
    "lion": {"strategy": "zero2", "optimizer": "lion"},
    "muon": {"strategy": "zero3", "optimizer": "muon"},
    "client": {"strategy": "zero2", "optimizer": "adafactor"},
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each variant after the Trainer went over it."""
    root = tmp_path_factory.mktemp("trainer")
    for name, changes in VARIANTS.items():
        (root / name).mkdir()
        text = deepspeed_config(make_job(**changes), dialect="hf_auto").text
        (root / name / "ds_config.json").write_text(text, encoding="utf-8")
    answer: dict[str, dict[str, Any]] = probe("hf_trainer", root, *(str(root / n / "ds_config.json") for n in VARIANTS))
    return answer


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_stays_auto_and_arguments_win(filled: dict[str, dict[str, Any]], name: str) -> None:
    """Batch, clipping, precision and learning rate are the Trainer's; bucket sizes the plan's."""
    config = filled[name]
    assert autos(config) == set()
    assert config["train_micro_batch_size_per_gpu"] == 3
    assert config["gradient_accumulation_steps"] == 5
    assert config["gradient_clipping"] == 0.7
    assert config["bf16"]["enabled"] is True
    assert config["zero_optimization"]["reduce_bucket_size"] == 50_000_000
    if "optimizer" in config:
        assert config["optimizer"]["params"]["lr"] == 1e-4
        assert config["optimizer"]["params"]["weight_decay"] == 0.2
