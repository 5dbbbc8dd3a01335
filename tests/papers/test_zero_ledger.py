"""The published ledger, to the digit: what ZeRO's authors print for their own examples."""

from __future__ import annotations

import pytest

from app.domain.memory import states
from app.domain.traffic.ideal import ideal_states_bytes, ideal_traffic_bytes
from app.domain.traffic.volumes import all_reduce_sent_bytes, gather_sent_bytes, reduce_scatter_sent_bytes

LEDGER = [
    (7_500_000_000, 64, {"ddp": 120.00, "zero1": 31.41, "zero2": 16.64, "zero3": 1.875}),
    (1_500_000_000, 8, {"ddp": 24.00, "zero1": 8.25, "zero2": 5.625, "zero3": 3.00}),
]


@pytest.mark.parametrize(("params", "ranks", "expected"), LEDGER)
def test_states_of_mixed_precision_adam(params: int, ranks: int, expected: dict[str, float]) -> None:
    """2 + 2 + 12 bytes per parameter, divided as each stage divides them, match the published GB to the last printed digit."""
    for strategy, gigabytes in expected.items():
        digits = len(f"{gigabytes:.3f}".rstrip("0").split(".")[1])
        assert round(ideal_states_bytes(params, ranks)[strategy] / 1e9, max(2, digits)) == gigabytes


@pytest.mark.parametrize(("ranks", "zero1", "zero2"), [(64, 3.82, 7.21), (8, 2.91, 4.27)])
def test_savings_with_finite_ranks(ranks: int, zero1: float, zero2: float) -> None:
    """Stages 1 and 2 save less than 4× and 8× with finitely many ranks."""
    ledger = ideal_states_bytes(7_500_000_000 // 64 * 64, ranks)
    assert round(ledger["ddp"] / ledger["zero1"], 2) == zero1
    assert round(ledger["ddp"] / ledger["zero2"], 2) == zero2


def test_ideal_ring_traffic() -> None:
    """7.5e9 parameters move 30 GB a step for large N under plain data parallelism, and 1.5 times that under ZeRO-3."""
    traffic = ideal_traffic_bytes(7_500_000_000, 2**20)
    assert round(traffic["ddp"] / 1e9, 1) == 30.0
    assert round(traffic["zero3"] / 1e9, 1) == 45.0
    assert traffic["ddp"] == traffic["zero1"] == traffic["zero2"]


@pytest.mark.parametrize(("params", "ranks", "expected"), LEDGER)
def test_terms_reproduce_the_ledger(params: int, ranks: int, expected: dict[str, float]) -> None:
    """The terms the planner sums give the same figures as the textbook line for ZeRO-2 and ZeRO-3."""
    moments = states.optimizer_bytes(params, 8, ranks) + states.master_bytes(params, 4, ranks)
    zero2 = states.parameter_bytes(params, 2, 1) + states.gradient_bytes(params, 2, ranks) + moments
    zero3 = states.parameter_bytes(params, 2, ranks) + states.gradient_bytes(params, 2, ranks) + moments
    assert zero2 / 1e9 == pytest.approx(expected["zero2"], abs=0.005)
    assert zero3 / 1e9 == pytest.approx(expected["zero3"], abs=0.0005)


def test_what_deepspeed_really_moves() -> None:
    """DeepSpeed's ZeRO-1 moves 1.5 times DDP's bytes, and ZeRO-2 pays its all-reduce in every micro-step (8.03e9 on 8 GPUs)."""
    params, ranks = 8.03e9, 8
    ddp = all_reduce_sent_bytes(params, 2, ranks, 1)
    zero1 = all_reduce_sent_bytes(params, 2, ranks, 1) + gather_sent_bytes(params, 2, ranks, 1)
    zero2 = all_reduce_sent_bytes(params, 2, ranks, 8) + gather_sent_bytes(params, 2, ranks, 1)
    zero3 = gather_sent_bytes(params, 2, ranks, 2) + reduce_scatter_sent_bytes(params, 2, ranks, 1)
    assert ddp / 1e9 == pytest.approx(28.1, abs=0.05)
    assert zero1 / 1e9 == pytest.approx(42.2, abs=0.05)
    assert zero2 / 1e9 == pytest.approx(239, abs=0.5)
    assert zero3 / 1e9 == pytest.approx(42.2, abs=0.05)
