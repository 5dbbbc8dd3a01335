"""How near two runs must be to count as the same training, and why not nearer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.verify.harness import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest absolute difference of any step.

    Attributes:
        loss: of the mean loss (about 6 at the start).
        norm: of the gradient norm (about 1).
        because: what explains a difference that large.
    """

    loss: float
    norm: float
    because: str


FP32 = Tolerance(loss=2e-6, norm=2e-5, because="fp32 sums taken in another order; scripts print six decimals")
CPU_ADAM = Tolerance(loss=1e-5, norm=1e-4, because="DeepSpeed's CPU Adam computes the same update by other instructions")
LOW = Tolerance(loss=5e-3, norm=5e-3, because="bf16 or fp16 products beside fp32 ones, or beside other roundings")
LOW_LEARNING = Tolerance(loss=5e-3, norm=5e-2, because="the same where weights have moved apart, or the gradient norm is several times 1")
TOLERANCES = {"FP32": FP32, "CPU_ADAM": CPU_ADAM, "LOW": LOW, "LOW_LEARNING": LOW_LEARNING}


def assert_same(left: list[Step], right: list[Step], within: Tolerance = FP32) -> None:
    """Equal step numbers, losses and gradient norms."""
    assert [step.number for step in left] == [step.number for step in right]
    assert len(left) > 0
    for one, other in zip(left, right, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=within.loss), (left, right)
        assert one.grad_norm == pytest.approx(other.grad_norm, abs=within.norm), (left, right)
