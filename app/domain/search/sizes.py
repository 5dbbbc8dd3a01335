"""DeepSpeed's bucket and gather-ahead sizes: the recommended plan takes those of a ladder that the models find best.

The search knows two ends of the ladder, roomy and lean, so that nothing that fits is missed; what is recommended is then evaluated
with every step of it. A larger bucket has fewer start-ups but leaves more of the last reduction exposed and takes more memory; gathering
further ahead, and keeping what was gathered, saves time for memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from app.domain.setup import Array, Columns

USUAL_SIZES = {"bucket": 500_000_000, "sub_group": 1_000_000_000, "prefetch": 50_000_000, "reuse": 1_000_000_000, "persistence": 100_000}
"""Elements. Source: DeepSpeed 0.19.8 runtime/zero/config.py; transformers' "auto" changes the bucket and the prefetch only."""

BUCKETS = (10_000_000, 20_000_000, 50_000_000, 100_000_000, 200_000_000, 500_000_000)
GATHERED = ((10_000_000, 0), (50_000_000, 0), (50_000_000, 1_000_000_000), (200_000_000, 1_000_000_000))
"""Prefetch bucket and reuse distance of stage 3, which leave room below ``stage3_max_live_parameters``. Stages 1 and 2 gather nothing:
there the first stands for no second bucket."""

LADDER = tuple(product(BUCKETS, GATHERED))

ALIKE_FRAC = 0.002
"""Step times that differ by less are alike, and the sizes that need least memory are taken."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Where candidates are evaluated again with other sizes.

    Attributes:
        shown: candidates, which come first.
        again: how many of these first ones follow again, each with DeepSpeed's own sizes and then with every step of ``LADDER``.
    """

    shown: int
    again: int = 0

    def candidate(self, place: int) -> int:
        """The candidate that an entry is of."""
        return place if place < self.shown else (place - self.shown) // (1 + len(LADDER))

    def usual(self, place: int) -> int | None:
        """Where the entry's candidate is with the sizes a file has that names none; None where it is not."""
        candidate = self.candidate(place)
        return self.shown + candidate * (1 + len(LADDER)) if candidate < self.again else None

    def ladder(self, place: int) -> Array:
        """Where the entry's candidate is with every step of the ladder."""
        usual = self.usual(place)
        return np.arange(0) if usual is None else np.arange(usual + 1, usual + 1 + len(LADDER))


def takes_sizes(columns: Columns) -> Array:
    """Whether a candidate has buckets of its own: DeepSpeed over several ranks."""
    takes: Array = (columns.deepspeed > 0) & (columns.zero_ranks > 1)
    return takes


def with_usual_sizes(columns: Columns) -> Columns:
    """The candidates as a file that names no sizes would run them."""
    sizes = {name: np.full_like(columns.bucket, size) for name, size in USUAL_SIZES.items()}
    return replace(columns, overlap_comm=columns.zero3 * 1, **sizes)


def with_other_sizes(columns: Columns) -> Columns:
    """Each candidate with DeepSpeed's own sizes and then with every step of the ladder, in the order that ``Sized`` says."""
    size, steps = len(columns), 1 + len(LADDER)
    repeated = columns.take(np.repeat(np.arange(size), steps))
    usual = with_usual_sizes(repeated)
    ladder = {
        "bucket": [bucket for bucket, _ in LADDER],
        "prefetch": [prefetch for _, (prefetch, _) in LADDER],
        "reuse": [reuse for _, (_, reuse) in LADDER],
        "overlap_comm": [int(gathered != GATHERED[0]) for _, gathered in LADDER],
    }
    first = np.tile(np.arange(steps) == 0, size)
    chosen = {name: np.tile([0, *values], size) for name, values in ladder.items()}
    chosen["overlap_comm"] = np.where(repeated.zero3, 1, chosen["overlap_comm"])
    own = {name: getattr(repeated, name) for name in ("sub_group", "persistence")}
    return replace(repeated, **{name: np.where(first, getattr(usual, name), values) for name, values in (chosen | own).items()})


def best_sizes(places: Array, step_s: Array, needed: Array, class_of: Array) -> int:
    """Of entries that differ by sizes only, the one to recommend: the best class, fastest within it, of those alike the smallest.

    Where none fits, it is the one that comes nearest.

    Args:
        places: entries to choose from, the one the search chose first.
        step_s: seconds per step, needed: bytes per GPU, class_of: 2 safe, 1 fits, 0 neither; all of them an entry each.
    """
    best = class_of[places].max()
    there = places[class_of[places] == best]
    alike = there[step_s[there] <= step_s[there].min() * (1 + ALIKE_FRAC)] if best else there
    return int(alike[np.argmin(needed[alike])])
