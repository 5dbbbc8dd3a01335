"""What a pin costs is said with the number, from a second search without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.search.objective import choose
from app.domain.search.scan import search
from tests.planning import plan_of, question_of

LLAMA: dict[str, Any] = {"preset": "llama-3.1-8b"}


def _said(**request: Any) -> list[Any]:
    plan = plan_of(LLAMA, {"seq_len": 8192} | request.pop("training", {}), **request)
    return [w for w in plan.warnings if w.code == "pinned_costs"]


def test_a_pin_that_costs_speed_is_named_with_the_number() -> None:
    """Full checkpointing where it is not needed: the warning has the loss and what would be chosen, as a search of its own finds it."""
    training = {"global_batch": 64, "activation_checkpointing": "full"}
    said = _said(training=training)
    assert [w.field for w in said] == ["training.activation_checkpointing"]
    free = question_of(LLAMA, {"seq_len": 8192, "global_batch": 64})
    table = search(replace(free.setup, pool=free.pools[0]), free.constraints).table
    best = choose(table, "throughput")
    assert best is not None
    mine = plan_of(LLAMA, {"seq_len": 8192} | training).recommended.time.tokens_per_s
    assert f"costs {100 * (1 - mine / table.tokens_per_s[best]):.0f} %" in said[0].message
    assert said[0].severity == "info"


def test_a_pin_that_keeps_it_from_fitting_is_named() -> None:
    """DDP holds everything: without the pin there is a plan."""
    said = _said(constraints={"strategy": "ddp"})
    assert said[0].field == "constraints.strategy"
    assert "nothing fits" in said[0].message


@pytest.mark.parametrize("objective", ["simplest", "largest_micro_batch"])
def test_only_speed_is_compared(objective: str) -> None:
    """Other objectives do not ask what is fastest."""
    assert not _said(training={"activation_checkpointing": "full"}, objective=objective)


def test_who_pins_everything_is_not_told_otherwise() -> None:
    """A request that leaves nothing but buckets open wants that plan."""
    training = {"micro_batch": 1, "grad_accum": 8, "activation_checkpointing": "full", "activation_offload": False}
    pins = {"framework": "deepspeed", "strategy": "zero3", "offload_optimizer": "none", "offload_parameters": "none"}
    assert not _said(training=training, constraints=pins)


def test_a_pin_that_costs_nothing_is_not_mentioned() -> None:
    """What the free search would choose anyway is no cost."""
    settings = plan_of(LLAMA, {"seq_len": 8192, "global_batch": 64}).recommended.settings
    assert not _said(training={"global_batch": 64}, constraints={"strategy": settings.strategy})
