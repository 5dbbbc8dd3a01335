"""What runs say about fitted constants: one bounded factor that no single run can move far, and none at all on what is counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BOUND_FRAC = 0.3
"""Most a factor departs from 1. The 90 % intervals of published runs are about as wide: who is further off measured something else."""
HALF_BELIEVED_RUNS = 2
"""Number of runs whose word counts half; with n of them n / (n + 2) of what they say is believed."""
LEAST_FITTED_FRAC = 0.01
"""Share of a figure that must be fitted for a run to say anything about it: below that its ratio is all noise."""


@dataclass(frozen=True, slots=True)
class Part:
    """A predicted figure, bytes or seconds, by what it is made of.

    Attributes:
        fixed: counted from shapes or derived from a library's code; no run moves it.
        fitted: resting on constants that were fitted to other people's runs.
    """

    fixed: float
    fitted: float

    @property
    def total(self) -> float:
        """The figure."""
        return self.fixed + self.fitted

    @property
    def tells(self) -> bool:
        """Whether a measurement of this figure says anything about what is fitted in it."""
        return self.fitted > 0 and self.fitted >= LEAST_FITTED_FRAC * self.total

    def corrected(self, factor: float) -> float:
        """The figure with its fitted part multiplied.

        Example:
            >>> Part(60.0, 10.0).corrected(1.1)
            71.0
        """
        return self.fixed + factor * self.fitted


@dataclass(frozen=True, slots=True)
class Pair:
    """One run: what was predicted and what was measured; ``at_least`` where it ended before it could take all it wanted."""

    predicted: Part
    measured: float
    at_least: bool = False

    @property
    def ratio(self) -> float:
        """By how much the fitted part was off, had everything else been right; within the bound.

        Equation: clip((measured − fixed) / fitted, 1 − bound, 1 + bound)

        Example: 60 of 70 are counted; 72 measured leaves 12 where 10 were fitted.
            >>> Pair(Part(60.0, 10.0), 72.0).ratio
            1.2
        """
        return _clip((self.measured - self.predicted.fixed) / self.predicted.fitted)


@dataclass(frozen=True, slots=True)
class Correction:
    """The factor for fitted parts, and how many runs it is made from; 1 from none."""

    factor: float = 1.0
    runs: int = 0


NOTHING = Correction()
"""What no runs say."""


def correction(pairs: Iterable[Pair]) -> Correction:
    """The factor that runs of one situation say.

    Equation: 1 + (middle(ratios) − 1) · n / (n + 2), so that |factor − 1| < bound.

    The middle is the median; of an even number of runs the one of the middle two that corrects less, and 1 where these two disagree about
    the direction. So a single run among others that agree moves nothing beyond them. A run that ended for want of memory counts with the
    larger of its bound and the middle of the others, where it is larger than that middle; otherwise it says nothing new.

    Args:
        pairs: runs; those whose figure has next to nothing fitted in it are left out.

    Example:
        >>> correction([Pair(Part(60.0, 10.0), 72.0), Pair(Part(60.0, 10.0), 72.0), Pair(Part(60.0, 10.0), 500.0)])
        Correction(factor=1.12, runs=3)
    """
    told = [pair for pair in pairs if pair.predicted.tells]
    whole = [pair.ratio for pair in told if not pair.at_least]
    known = _middle(whole)
    ratios = whole + [pair.ratio for pair in told if pair.at_least and pair.ratio > known]
    count = len(ratios)
    if not count:
        return NOTHING
    return Correction(factor=round(1 + (_middle(ratios) - 1) * count / (count + HALF_BELIEVED_RUNS), 6), runs=count)


def _middle(ratios: Sequence[float]) -> float:
    if not ratios:
        return 1.0
    ordered = sorted(ratios)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    if low <= 1 <= high:
        return 1.0 if low != high else low
    return low if low > 1 else high


def _clip(ratio: float) -> float:
    return min(1 + BOUND_FRAC, max(1 - BOUND_FRAC, ratio))
