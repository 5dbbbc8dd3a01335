"""DDP whose ranks divide the optimizer's states: what each holds, what it steps, and what is sent after the step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning import plan_of, term_bytes

LLAMA: dict[str, Any] = {
    "shape": {"num_layers": 16, "hidden_size": 2048, "num_heads": 16, "ffn_hidden_size": 5632, "vocab_size": 32000, "head_dim": 128}
}
STEP = {"seq_len": 1024, "micro_batch": 1, "grad_accum": 1, "activation_checkpointing": "none"}
DDP, SHARDED = {"framework": "ddp", "strategy": "ddp"}, {"framework": "ddp", "strategy": "zero1"}


def test_states_are_divided_and_nothing_else() -> None:
    """8 bytes of moments a parameter over the ranks; weights and gradients as under DDP (facts/fsdp.md, 2.2)."""
    whole, divided = (plan_of(LLAMA, STEP, constraints=pins) for pins in (DDP, SHARDED))
    params = whole.model.total_params
    assert term_bytes(whole, "optimizer states") == 8 * params
    assert term_bytes(divided, "optimizer states") == pytest.approx(params)
    for name in ("parameters", "gradients"):
        assert term_bytes(divided, name) == term_bytes(whole, name) == 4 * params


def test_whole_tensors_are_dealt_out() -> None:
    """Over 64 ranks the largest tensor, the embedding, is more than an even share, and its rank is the fullest."""
    plan = plan_of(LLAMA, STEP, nodes=8, constraints=SHARDED)
    assert term_bytes(plan, "optimizer states") == 8 * 32000 * 2048 > 8 * plan.model.total_params / 64


def test_stepped_tensors_are_sent_to_all() -> None:
    """The gradients' all-reduce, and once more the fp32 weights; each tensor is a call of its own, which DeepSpeed's flat gather is not."""
    plan = plan_of(LLAMA, STEP, constraints=SHARDED).recommended
    sent = {term.name: term for term in plan.communication}
    assert sent["gradient all-reduce"].bytes_per_step == pytest.approx(2 * sent["parameter all-gather after the step"].bytes_per_step)
    assert sent["parameter all-gather after the step"].exposed_s == sent["parameter all-gather after the step"].seconds
    whole = plan_of(LLAMA, STEP, constraints=DDP).recommended
    assert plan.time.optimizer_s < whole.time.optimizer_s / 4


def test_the_name_alone_means_deepspeeds_stage() -> None:
    """ZeRO-1 without a framework is DeepSpeed's; with everything open both are on the ladder."""
    named = plan_of(LLAMA, STEP, constraints={"strategy": "zero1"})
    assert {rung.settings["framework"] for rung in named.ladder} == {"deepspeed"}
    open_ = plan_of(LLAMA, STEP)
    assert {"DDP with ZeroRedundancyOptimizer", "ZeRO-1"} <= {rung.label for rung in open_.ladder}


@pytest.mark.parametrize(
    ("training", "reason"), [({"optimizer": "muon"}, "not to muon"), ({"optimizer_in_backward": True}, "after backward")]
)
def test_what_it_cannot_step_is_said(training: dict[str, Any], reason: str) -> None:
    """Optimizers of several classes, and steps inside backward, leave it out with the reason."""
    plan = plan_of(LLAMA, STEP | training)
    assert any(reason in r.reason for r in plan.rejected)
    assert "DDP with ZeroRedundancyOptimizer" not in {rung.label for rung in plan.ladder}
