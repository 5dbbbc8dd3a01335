"""The factor that runs make: bounded, moved by no single one of them, and never touching what is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.calibrate import BOUND_FRAC, NOTHING, Pair, Part, correction

BYTES = st.floats(0, 1e12)
PARTS = st.builds(Part, BYTES, BYTES)
PAIRS = st.lists(st.builds(Pair, PARTS, st.floats(1, 1e13), st.booleans()), max_size=12)
TEN = Part(60.0, 10.0)


def runs(*measured: float) -> list[Pair]:
    return [Pair(TEN, value) for value in measured]


@given(PAIRS, PARTS)
def test_a_factor_is_bounded_and_leaves_alone_what_is_counted(pairs: list[Pair], part: Part) -> None:
    """Whatever was measured: a figure moves by less than 30 % of what is fitted in it, and not at all where nothing is."""
    factor = correction(pairs).factor
    assert abs(factor - 1) < BOUND_FRAC
    assert Part(part.fixed, 0.0).corrected(factor) == part.fixed
    assert abs(part.corrected(factor) - part.total) <= BOUND_FRAC * part.fitted + 1e-6 * part.total


@given(st.lists(st.floats(65, 77), min_size=2, max_size=9), st.floats(0, 1e6))
def test_one_run_among_others_moves_nothing_beyond_them(agreeing: list[float], outlier: float) -> None:
    """The middle stays between the others, or at no correction."""
    ratios = [pair.ratio for pair in runs(*agreeing)]
    count = len(agreeing) + 1
    middle = 1 + (correction(runs(*agreeing, outlier)).factor - 1) * (count + 2) / count
    assert min(1.0, *ratios) - 1e-5 <= middle <= max(1.0, *ratios) + 1e-5


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_matter(pairs: list[Pair], random: st.DrawFn) -> None:
    """Nor when they came."""
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert correction(shuffled) == correction(pairs)


def test_more_runs_are_believed_more() -> None:
    """A third of what one says, half of two, nearly all of many."""
    factors = [correction(runs(*[72.0] * count)).factor for count in (1, 2, 3, 20)]
    assert factors == pytest.approx([1 + 0.2 / 3, 1.1, 1.12, 1 + 0.2 * 20 / 22], abs=1e-6)


def test_of_two_the_one_that_corrects_less_counts() -> None:
    """And nothing where they disagree about the direction."""
    assert correction(runs(71.0, 500.0)).factor == pytest.approx(1.05)
    assert correction(runs(69.0, 61.0)).factor == pytest.approx(0.95)
    assert correction(runs(69.0, 71.0)).factor == 1.0


def test_running_out_of_memory_says_at_least() -> None:
    """It raises where others say less, and lowers nothing; a plan that was going to fail teaches nothing by failing."""
    failed = Pair(TEN, 72.0, at_least=True)
    assert correction([failed]).factor == pytest.approx(1 + 0.2 / 3)
    assert correction([Pair(TEN, 65.0, at_least=True)]) == NOTHING
    assert correction([*runs(71.0, 71.0, 71.0), failed]).factor == pytest.approx(1 + 0.1 * 4 / 6)
    assert correction([*runs(73.0, 73.0), failed]) == correction(runs(73.0, 73.0))


def test_a_figure_with_nothing_fitted_says_nothing() -> None:
    """Its ratio would be all noise."""
    assert correction([Pair(Part(60.0, 0.0), 90.0), Pair(Part(1000.0, 1.0), 2000.0)]) == NOTHING
