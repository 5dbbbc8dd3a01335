"""A ledger: lines made by term functions over columns, summed for every candidate, explained for one.

The same lines give both: the sums the search compares and, for a chosen candidate, each line's formula with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.cards import Card, card_of

Array = NDArray[Any]


POOLS = {
    "root_gather_bytes": "gather",
    "unit_gather_bytes": "gather",
    "stage3_gather_bytes": "gather",
    "reduce_input_bytes": "reduce",
    "gradient_bytes": "reduce",
    "step_buffer_bytes": "flat",
}
"""Terms whose blocks serve nothing else: a stream of their own where parameters are sharded, or flat copies of a whole model part,
which no row of freed activations is long enough for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One term over all candidates.

    Attributes:
        card: what explains it.
        category: colour on the page.
        lifetime: always, forward, backward or step, in words for the reader.
        arguments: what the term function was called with.
        value: what it returned, an entry a candidate.
        alive: share of the value that exists at each moment; moments not named have none of it.
        pool: allocator pool it is taken from: that of the default stream, of the gathering or of the reducing one, or flat copies.
    """

    card: Card
    category: str
    lifetime: str
    arguments: Mapping[str, Any]
    value: Array
    alive: Mapping[str, Any] = field(default_factory=dict)
    pool: str = "default"


class Ledger:
    """Lines in the order they were added, for ``size`` candidates."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lines: list[Line] = []

    def add(self, function: Callable[..., Any], category: str, lifetime: str, alive: Mapping[str, Any], **arguments: Any) -> Array:
        """Evaluate a term for all candidates and keep it as a line; returns its values.

        Which stream a term allocates on is declared in ``POOLS``.
        """
        value = np.broadcast_to(np.asarray(function(**arguments), dtype=np.float64), (self.size,))
        card = card_of(function)
        self.lines.append(
            Line(
                card=card,
                category=category,
                lifetime=lifetime,
                arguments=arguments,
                value=value,
                alive=alive,
                pool=POOLS.get(function.__name__, "default"),
            )
        )
        return value

    def total(self) -> Array:
        """Sum of all lines, an entry a candidate."""
        out = np.zeros(self.size)
        for line in self.lines:
            out += line.value
        return out

    def at(self, moment: str, pool: str | None = None) -> Array:
        """Sum of what is alive at one moment (in one allocator pool, if named), an entry a candidate."""
        out = np.zeros(self.size)
        for line in self.lines:
            share = line.alive.get(moment)
            if share is not None and pool in (None, line.pool):
                out += line.value * share
        return out


def chosen(ledgers: Sequence[Ledger], which: Array) -> Ledger:
    """One ledger that takes each candidate's entries from the ledger picked for it.

    Args:
        ledgers: ledgers with the same lines in the same order.
        which: index into them, an entry a candidate.
    """

    def pick(values: Sequence[Any]) -> Array:
        return np.choose(which, [np.broadcast_to(np.asarray(v), (len(which),)) for v in values])

    out = Ledger(len(which))
    for lines in zip(*(ledger.lines for ledger in ledgers), strict=True):
        first = lines[0]
        out.lines.append(
            Line(
                card=first.card,
                category=first.category,
                lifetime=first.lifetime,
                arguments={name: pick([line.arguments[name] for line in lines]) for name in first.arguments},
                value=pick([line.value for line in lines]),
                alive={moment: pick([line.alive[moment] for line in lines]) for moment in first.alive},
                pool=first.pool,
            )
        )
    return out


def entry(value: Any, index: int) -> float:
    """One candidate's number out of a column or a scalar."""
    array = np.asarray(value)
    return float(array if array.ndim == 0 else array[index])


def formula_of(line: Line, index: int) -> str:
    """The line's equation with one candidate's numbers put in."""
    return line.card.with_numbers({k: entry(v, index) for k, v in line.arguments.items()})
