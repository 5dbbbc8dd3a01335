"""Emitted scripts train on real ranks, and every way of sharding computes the same thing.

An exit code says little: a job whose ranks never talk also ends well. So losses and gradient norms are compared with
those of one rank on the same global batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.emit.jobs import TINY_LLAMA, TINY_MIXTRAL, make_job, tiny_llama
from tests.verify.agreement import LOW, assert_same
from tests.verify.conftest import Trainer
from tests.verify.harness import forget_steps_after, train

pytestmark = pytest.mark.files("fsdp2_train.py, ddp_train.py", "torch", "transformers")

FSDP2: dict[str, Any] = {"framework": "fsdp2", "precision": "fp32"}
DDP: dict[str, Any] = {"framework": "ddp", "precision": "fp32"}
SAME_RESULT: dict[str, dict[str, Any]] = {
    "no reshard": {"strategy": "fsdp_grad_op"},
    "offload": {"offload_parameters": "cpu", "offload_optimizer": "cpu"},
    "full checkpointing and fused loss": {"activation_checkpointing": "full", "fused_loss": True},
    "selective checkpointing, activations in host memory": {
        "activation_checkpointing": "selective",
        "activation_offload": True,
    },
    "tensor parallel": {"tensor_parallel": 2, "dp_shard": 4},
}


def test_two_ranks_compute_what_one_computes(trained: Trainer) -> None:
    """Gradients are really averaged: a rank training alone on half the batch would show another norm."""
    assert_same(trained(2, **FSDP2), trained(1, **FSDP2))


def test_ddp_and_fsdp2_agree(trained: Trainer) -> None:
    """Two scripts, two ways of averaging, one result."""
    assert_same(trained(2, **DDP), trained(2, **FSDP2))


def test_hybrid_sharding_agrees(trained: Trainer) -> None:
    """Two copies of two shards: both axes of the mesh reduce."""
    hybrid = {**FSDP2, "strategy": "hsdp", "dp_replicate": 4, "dp_shard": 2}
    assert_same(trained(4, **hybrid), trained(1, **FSDP2))


@pytest.mark.parametrize("name", SAME_RESULT)
def test_settings_that_only_move_memory_change_no_result(trained: Trainer, name: str) -> None:
    """Resharding, offload, recomputation and split matrices are about where, not what."""
    assert_same(trained(2, **FSDP2, **SAME_RESULT[name]), trained(2, **FSDP2))


@pytest.mark.parametrize("optimizer", ["muon", "adafactor"])
def test_optimizers_written_for_shards_match_the_unsharded_ones(trained: Trainer, optimizer: str) -> None:
    """Row means and orthogonalised matrices need the whole tensor, whoever holds it."""
    sharded = trained(2, **FSDP2, optimizer=optimizer)
    assert_same(sharded, trained(2, **DDP, optimizer=optimizer))


@pytest.mark.parametrize("changes", [{}, {"param_dtype": "bf16", "reduce_dtype": "bf16", "master_weights": False}, {"compile": True}])
def test_bf16_stays_near_fp32(trained: Trainer, changes: dict[str, Any]) -> None:
    """Rounding moves the third digit of a loss, no more."""
    low = trained(2, framework="fsdp2", precision="bf16", **changes)
    assert_same(low, trained(2, **FSDP2), LOW)


def test_fp16_trains_with_a_loss_scaler(trained: Trainer) -> None:
    """Gradients are unscaled before they are measured, or their norm would be tens of thousands."""
    assert_same(trained(2, framework="fsdp2", precision="fp16"), trained(2, **FSDP2), LOW)


def test_stepping_in_backward_trains(trained: Trainer) -> None:
    """No norm exists then; the first loss is the common one and later ones move."""
    steps = trained(2, **FSDP2, optimizer_in_backward=True, grad_accum=1)
    assert steps[0].loss == pytest.approx(trained(2, **FSDP2)[0].loss, abs=2e-6)
    assert len({step.loss for step in steps}) == 3


@pytest.mark.parametrize("moe", [False, True])
def test_tied_and_expert_models_agree_with_ddp(trained: Trainer, moe: bool) -> None:
    """A tied weight is in one group only, and experts are cut without losing any."""
    config = TINY_MIXTRAL if moe else {**TINY_LLAMA, "tie_word_embeddings": True}
    model = tiny_llama(moe=moe, tied=not moe)
    job = {"hf_config": config}
    assert_same(trained(2, **FSDP2, model=model, job=job), trained(2, **DDP, model=model, job=job))


def test_lora_trains_only_adapters(trained: Trainer) -> None:
    """The same adapters on both scripts; their gradient is a fraction of the whole model's."""
    pytest.importorskip("peft")
    job = {"adapter": {"kind": "lora", "rank": 4, "targets": "all-linear"}}
    sharded = trained(2, framework="fsdp2", job=job)
    assert_same(sharded, trained(2, framework="ddp", job=job), LOW)
    assert sharded[0].grad_norm < trained(2, **FSDP2)[0].grad_norm / 2


@pytest.mark.parametrize("changes", [FSDP2, DDP])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Saved after two steps of four, continued, on the same ranks."""
    job, save = make_job(**changes), ["--save-dir", str(tmp_path / "saved")]
    whole = train(job, tmp_path, ranks=2, steps=4, extra=[*save, "--save-every", "2"])
    forget_steps_after(tmp_path / "saved", 2)
    assert_same(train(job, tmp_path, ranks=2, steps=4, extra=[*save, "--resume"]), whole[2:])


def test_a_run_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Shards written by two ranks are read by one, and by a hybrid mesh of four."""
    save = ["--save-dir", str(tmp_path / "saved")]
    whole = train(make_job(**FSDP2), tmp_path, ranks=2, steps=4, extra=[*save, "--save-every", "2"])
    for ranks, changes in ((1, {}), (4, {"strategy": "hsdp", "dp_replicate": 2, "dp_shard": 2})):
        forget_steps_after(tmp_path / "saved", 2)
        job = make_job(**{**FSDP2, **changes})
        assert_same(train(job, tmp_path, ranks=ranks, steps=4, extra=[*save, "--resume"]), whole[2:])


def test_data_from_a_file_is_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Token ids in a .bin file: each step reads the same sequences, and the tail is left out."""
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"".join((n * n % 509).to_bytes(2, "little") for n in range(64 * 21 + 1)))
    job, extra = make_job(**FSDP2), ["--data", str(path)]
    one = train(job, tmp_path, ranks=1, steps=3, extra=extra)
    assert_same(train(job, tmp_path, ranks=2, steps=3, extra=extra), one)
    assert one[0].loss != one[2].loss
