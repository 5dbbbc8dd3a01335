"""Properties that any memory model must have, whatever the constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.memory.moments import MOMENTS
from tests.planning import evaluate_request, plan_of

LLAMA: dict[str, Any] = {
    "shape": {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 14336, "vocab_size": 128256}
}
STATE_NAMES = {
    "parameters",
    "fp32 master weights",
    "optimizer states",
    "duplicate master weights",
    "frozen parameters",
    "adapter parameters",
    "gradients",
}


def _states(evaluation: Any) -> float:
    return float(sum(line.value[0] for line in evaluation.memory.gpu.lines if line.card.title in STATE_NAMES))


@settings(max_examples=25, deadline=None)
@given(
    strategy=st.sampled_from(
        [("deepspeed", "zero1"), ("deepspeed", "zero2"), ("deepspeed", "zero3"), ("fsdp2", "fsdp_full"), ("ddp", "ddp")]
    ),
    gpus=st.sampled_from([1, 2, 4]),
    precision=st.sampled_from(["bf16", "fp32", "fp16"]),
    optimizer=st.sampled_from(["adamw", "lion", "sgd", "adamw_8bit", "adafactor", "muon"]),
)
def test_more_ranks_never_need_more_state(strategy: tuple[str, str], gpus: int, precision: str, optimizer: str) -> None:
    """Doubling the ranks never raises the states of one GPU, under any strategy, precision or optimizer."""
    pins = {"framework": strategy[0], "strategy": strategy[1], "offload_optimizer": "none", "offload_parameters": "none"}
    training = {"seq_len": 512, "micro_batch": 1, "precision": precision, "optimizer": optimizer}
    few = evaluate_request(LLAMA, training, gpus=gpus, constraints=pins)
    many = evaluate_request(LLAMA, training, gpus=2 * gpus, constraints=pins)
    # FSDP2 pads first dims to a multiple of the ranks, which may cost a fraction of a per mille.
    assert _states(many) <= _states(few) * 1.001


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2", "ddp"])
@pytest.mark.parametrize("kind", ["none", "lora"])
def test_terms_add_up_to_the_totals(framework: str, kind: str) -> None:
    """The terms listed are those alive at the peak; without overheads they sum to allocated, with them to the device total."""
    training = {"seq_len": 2048, "micro_batch": 2, "adapter": {"kind": "lora"} if kind == "lora" else None}
    gpu = plan_of(LLAMA, training, constraints={"framework": framework}).recommended.gpu
    live = sum(int(t.value) for t in gpu.terms if t.category != "overhead")
    assert live == gpu.peak_allocated_bytes
    assert sum(int(t.value) for t in gpu.terms) == pytest.approx(gpu.device_bytes, abs=len(gpu.terms) + 2)
    assert gpu.peak_allocated_bytes <= gpu.peak_reserved_bytes <= gpu.device_bytes
    assert gpu.peak_allocated_bytes == pytest.approx(max(m.allocated_bytes for m in gpu.moments), abs=len(gpu.terms))


@settings(max_examples=20, deadline=None)
@given(seq=st.sampled_from([512, 4096, 32768]), micro=st.integers(1, 8), attention=st.sampled_from(["flash", "eager", "sdpa"]))
def test_checkpointing_never_saves_more(seq: int, micro: int, attention: str) -> None:
    """Full checkpointing keeps at most what selective keeps, and that at most what none keeps."""
    kept = []
    for policy in ("none", "selective", "full"):
        evaluation = evaluate_request(
            LLAMA, {"seq_len": seq, "micro_batch": micro, "attention": attention, "activation_checkpointing": policy},
            constraints={"framework": "fsdp2", "strategy": "fsdp_full", "offload_optimizer": "none", "offload_parameters": "none"},
        )  # fmt: skip
        kept.append(sum(line.value[0] for line in evaluation.memory.gpu.lines if line.card.title == "saved activations"))
    assert kept[0] >= kept[1] >= kept[2] > 0


def test_peak_is_the_largest_moment_and_memory_grows_with_batch() -> None:
    """The peak is the maximum over moments for every candidate, and never falls when the micro-batch grows."""
    evaluation = evaluate_request(LLAMA, {"seq_len": 2048})
    memory, c = evaluation.memory, evaluation.columns
    assert len(memory.by_moment) == len(MOMENTS)
    assert np.array_equal(memory.allocated, memory.by_moment.max(axis=0))
    keys = [c.row, c.tp, c.pp, c.sp, c.ep, c.group, c.hpz, c.qwz, c.qgz, c.checkpointing, c.act_offload, c.offload_optimizer,
            c.offload_parameters, c.lean, c.micro_batch]  # fmt: skip
    order = np.lexsort(tuple(reversed(keys)))
    same = np.all([k[order][1:] == k[order][:-1] for k in keys[:-1]], axis=0)
    assert np.all(np.diff(memory.device[order])[same] >= 0)


def test_zero3_and_fsdp2_states_differ_by_the_dtype_rule() -> None:
    """Both come to 16 bytes over the ranks: ZeRO-3 as 2 + 2 + 12, FSDP2 as 4 + 4 + 8."""
    pins = {"offload_optimizer": "none", "offload_parameters": "none"}
    training = {"seq_len": 512, "micro_batch": 1}
    zero3 = evaluate_request(LLAMA, training, constraints={"framework": "deepspeed", "strategy": "zero3", **pins})
    fsdp2 = evaluate_request(LLAMA, training, constraints={"framework": "fsdp2", "strategy": "fsdp_full", **pins})
    assert _states(zero3) == pytest.approx(16 * 8_030_261_248 / 8)
    assert _states(fsdp2) == pytest.approx(16 * 8_030_261_248 / 8, rel=1e-3)
