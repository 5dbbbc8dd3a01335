"""A run as its allocations see it: what is divided over how many ranks, and how large one micro-batch is."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from app.domain.model.architecture import Architecture
from app.domain.setup import Numbers

DEFAULT_BUCKET, DEFAULT_SUB_GROUP, DEFAULT_PREFETCH = 500_000_000, 1_000_000_000, 50_000_000
"""Elements, where a DeepSpeed file names none (zero/config.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What ran.

    Attributes:
        model, numbers: the model, and its counts under the recipe.
        frameworks, strategies: those that may have run; several where nobody said which.
        ranks: ranks that states are sharded over; shard_ranks: of one shard group.
        tp, pp, sp, ep: degrees of the other axes.
        micro_batch, seq_len: None where nobody said.
        compute_bytes: of one element of an activation; param_bytes of a trained weight as it is stored.
        eager: attention writes out its scores.
        offloads: optimizer states are said to be on the host.
        buckets, sub_groups, prefetches: elements, DeepSpeed's sizes that may be in its file.
        adapter: low-rank factors are trained; base_bytes is what one weight of the base takes.
    """

    model: Architecture
    numbers: Numbers
    frameworks: frozenset[str]
    strategies: frozenset[str]
    ranks: int
    shard_ranks: int
    micro_batch: int | None
    seq_len: int | None
    compute_bytes: int
    param_bytes: int
    eager: bool
    offloads: bool
    buckets: tuple[int, ...]
    sub_groups: tuple[int, ...]
    prefetches: tuple[int, ...]
    adapter: bool
    base_bytes: float
    tp: int = 1
    pp: int = 1
    sp: int = 1
    ep: int = 1

    @property
    def model_ranks(self) -> int:
        """Ranks that one copy of the model is split over."""
        return self.tp * self.pp

    @property
    def tokens(self) -> float | None:
        """Tokens of one micro-batch on one rank."""
        if self.micro_batch is None or self.seq_len is None:
            return None
        return self.micro_batch * self.seq_len / self.sp


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One allocation that a run makes.

    Attributes:
        name: in the field's words.
        bytes: its size; ``most`` the largest it can be where that depends on what cannot be known.
        arithmetic: how the size comes about, with numbers.
        moments: when it is made, in the words of the answer.
        hints: what stack lines that make it speak of.
        prior: how often such an allocation is the one that fails, compared with the others.
        category: of the ledger's.
        per_token: bytes a token adds, and per_square bytes a sequence adds for each pair of its tokens; 0 where it follows neither.
        batch: sequences of the micro-batch that the size was worked out for, where nobody had said.
    """

    name: str
    bytes: float
    arithmetic: str
    moments: tuple[str, ...]
    hints: tuple[str, ...] = ()
    prior: float = 0.3
    category: str = "buffers"
    most: float = 0.0
    least: float = 0.0
    per_token: float = 0.0
    per_square: float = 0.0
    batch: int | None = None

    def off_by(self, low: float, high: float) -> float:
        """How far the size is from a range of sizes, as a share of it; 0 inside."""
        least, most = self.least or self.bytes, max(self.most, self.bytes)
        if most >= low and least <= high:
            return 0.0
        found = (low - most) / low if most < low else (least - high) / high
        return found if isfinite(found) else 1.0


def in_words(value: float) -> str:
    """A count as it stands in arithmetic.

    Example:
        >>> in_words(13_896_668_160), in_words(152_064), in_words(4), in_words(2.5)
        ('13.90e9', '152,064', '4', '2.5')
    """
    if abs(value) >= 1e9:
        return f"{value / 1e9:.2f}e9"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def over(ranks: int, what: str = "ranks") -> tuple[str, str]:
    """The words and the number of a division; empty where nothing is divided.

    Example:
        >>> over(4), over(1)
        ((' / 4 ranks', ' / 4'), ('', ''))
    """
    return (f" / {ranks} {what}", f" / {ranks}") if ranks > 1 else ("", "")
