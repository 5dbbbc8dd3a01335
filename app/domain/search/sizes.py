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

KEPT_FRACS = tuple(eighth / 8 for eighth in range(1, 8))
"""Shares of an offloaded optimizer that may stay on the GPU (``ratio`` is the rest): exact in binary, since DeepSpeed cuts (1 − ratio) · n
down to whole sub-groups."""

SUB_GROUPS = 16
"""Sub-groups at least where some of them stay on the GPU, so that every share above is a whole number of them."""

LADDER = tuple(product(BUCKETS, GATHERED))

ALIKE_FRAC = 0.002
"""Step times that differ by less are alike, and the sizes that need least memory are taken."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Where candidates are evaluated again with other sizes.

    Attributes:
        shown: candidates, which come first.
        again: how many of these first ones follow again, each with DeepSpeed's own sizes and then with every step of ``LADDER``.
        kept_fracs: shares of the optimizer that stay on the GPU, for each of which there is a ladder.
    """

    shown: int
    again: int = 0
    kept_fracs: tuple[float, ...] = (0.0,)

    @property
    def steps(self) -> int:
        """Entries of one candidate behind all of them."""
        return 1 + len(LADDER) * len(self.kept_fracs)

    def candidate(self, place: int) -> int:
        """The candidate that an entry is of."""
        return place if place < self.shown else (place - self.shown) // self.steps

    def usual(self, place: int) -> int | None:
        """Where the entry's candidate is with the sizes a file has that names none; None where it is not."""
        candidate = self.candidate(place)
        return self.shown + candidate * self.steps if candidate < self.again else None

    def ladder(self, place: int) -> Array:
        """Where the entry's candidate is with every step of the ladder."""
        usual = self.usual(place)
        return np.arange(0) if usual is None else np.arange(usual + 1, usual + self.steps)


def takes_sizes(columns: Columns) -> Array:
    """Whether a candidate has sizes of its own: DeepSpeed's buckets over several ranks, and what it keeps of an offloaded optimizer."""
    takes: Array = (columns.deepspeed > 0) & (columns.zero_ranks > 1) | takes_ratio(columns)
    return takes


def takes_ratio(columns: Columns) -> Array:
    """Whether DeepSpeed can keep a part of the offloaded optimizer on the GPU: stage 3 to the CPU, with fp32 masters.

    Source: DeepSpeed 0.19.8 runtime/zero/config.py (``ratio``), stage3.py ``_create_fp32_partitions``.
    """
    takes: Array = columns.zero3 & (columns.offload_optimizer == 1) & (columns.master_bytes == 4)
    return takes


def with_other_sizes(columns: Columns, sized: Sized, trainable: int) -> Columns:
    """The candidates, and behind them the first ones with DeepSpeed's own sizes and with every step of the ladder, as ``sized`` says.

    Args:
        trainable: trained parameters of the model.
    """
    ladder = [(*step, kept) for kept in sized.kept_fracs for step in LADDER]
    size = len(columns)
    rows = columns.take(np.concatenate((np.arange(size), np.repeat(np.arange(sized.again), sized.steps))))
    own, usual = np.arange(len(rows)) < size, np.zeros(len(rows), dtype=bool)
    usual[size :: sized.steps] = True

    def steps(values: list[float]) -> Array:
        return np.concatenate((np.zeros(size, dtype=np.int64), np.tile(np.array([0, *values]), sized.again)))

    kept = steps([kept for _, _, kept in ladder]) * takes_ratio(rows)
    shard = trainable / (rows.tp * rows.pp * rows.state_ranks)
    tile = np.minimum(rows.sub_group, np.ceil(shard / SUB_GROUPS)).astype(np.int64)
    chosen = {
        "bucket": steps([bucket for bucket, _, _ in ladder]),
        "prefetch": steps([prefetch for _, (prefetch, _), _ in ladder]),
        "reuse": steps([reuse for _, (_, reuse), _ in ladder]),
        "sub_group": np.where(kept > 0, tile, rows.sub_group),
        "persistence": rows.persistence,
    }
    sizes = {name: np.where(own, getattr(rows, name), np.where(usual, USUAL_SIZES[name], values)) for name, values in chosen.items()}
    overlap = np.where(rows.zero3, 1, steps([int(gathered != GATHERED[0]) for _, gathered, _ in ladder]))
    return replace(rows, kept_frac=kept, overlap_comm=np.where(own, rows.overlap_comm, overlap), **sizes)


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
