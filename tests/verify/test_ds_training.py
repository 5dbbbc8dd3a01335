"""ds_train.py trains under each ZeRO stage with the ds_config.json beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.emit.jobs import make_job
from tests.verify.agreement import CPU_ADAM, LOW, assert_same
from tests.verify.conftest import Trainer
from tests.verify.harness import forget_steps_after, train

pytestmark = pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")

# torch's AdamW, so that no CUDA-style kernel has to be compiled first.
DEEPSPEED: dict[str, Any] = {"framework": "deepspeed", "precision": "fp32", "optimizer_implementation": "foreach"}
FSDP2: dict[str, Any] = {"framework": "fsdp2", "precision": "fp32"}


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_stages_1_and_2_compute_what_fsdp2_computes(trained: Trainer, strategy: str) -> None:
    """Same model, same data, same global batch, another framework."""
    assert_same(trained(2, **DEEPSPEED, strategy=strategy), trained(2, **FSDP2))


def test_stage_3_starts_elsewhere_and_is_consistent(trained: Trainer) -> None:
    """Its weights are drawn layer by layer, so losses differ; recomputation and one rank more change nothing."""
    plain = trained(2, **DEEPSPEED, strategy="zero3")
    assert_same(trained(2, **DEEPSPEED, strategy="zero3", activation_checkpointing="full", fused_loss=True), plain)
    assert_same(trained(1, **DEEPSPEED, strategy="zero3"), plain)
    assert plain[0].loss == pytest.approx(trained(2, **FSDP2)[0].loss, abs=0.05)


def test_bf16_with_fp32_accumulation_stays_near_fp32(trained: Trainer) -> None:
    """The dtype block is accepted and harmless."""
    changes = {**DEEPSPEED, "precision": "bf16", "grad_dtype": "fp32"}
    assert_same(trained(2, **changes, strategy="zero2"), trained(2, **FSDP2), LOW)


def test_offload_to_the_cpu_changes_no_result(trained: Trainer) -> None:
    """Parameters and optimizer in host memory, stepped by DeepSpeed's CPU Adam, which is compiled at the first run."""
    offloaded = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    plain = trained(2, **DEEPSPEED, strategy="zero3")
    assert_same(trained(2, **DEEPSPEED, strategy="zero3", **offloaded), plain, CPU_ADAM)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """At stage 3, saved after two steps of four."""
    job, save = make_job(**DEEPSPEED, strategy="zero3"), ["--save-dir", str(tmp_path / "saved")]
    whole = train(job, tmp_path, ranks=2, steps=4, extra=[*save, "--save-every", "2"])
    forget_steps_after(tmp_path / "saved", 2)
    assert_same(train(job, tmp_path, ranks=2, steps=4, extra=[*save, "--resume"]), whole[2:])
