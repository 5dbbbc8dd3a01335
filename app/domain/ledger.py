"""A ledger: lines made by term functions over columns, summed for every candidate, explained for one.

The same lines give both: the sums the search compares and, for a chosen candidate, each line's formula with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.domain.cards import Card, card_of

Array = NDArray[Any]
Shape = int | tuple[int, ...]


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


SPLIT_BY_SEQUENCE = frozenset({"logits and loss", "gathered root parameters", "unsharded gradients", "activations outside the blocks"})
"""Terms that tensor ranks divide only with sequence and loss parallelism, as torchtitan's plan has them; fsdp2_train.py splits the
matrices of the blocks and keeps these whole on each."""


class Line(NamedTuple):
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
    alive: Mapping[str, Any]
    pool: str

    def under(self, role: str) -> Line:
        """The same line as one of the model that has this role; no role is the trained model's."""
        return self._replace(card=replace(self.card, title=f"{role}: {self.card.title}")) if role else self


class Tally:
    """Sums of lines, for the search: terms may differ in shape as long as they broadcast.

    What depends on structure alone is an (S, 1) array and is summed as such; only sums meet the (S, B) arrays of batches. Lines
    that are alive at the same moments with the same constant shares are summed before they are spread over those moments.
    """

    def __init__(self, size: Shape) -> None:
        self.size = size
        self._together: dict[tuple[str, tuple[tuple[str, float], ...]], dict[Shape, Array]] = {}
        self._apart: dict[tuple[str, str], dict[Shape, Array]] = {}
        self._all: dict[Shape, Array] = {}
        self._spread: dict[str, dict[str, dict[Shape, Array]]] = {}
        self._by_sequence: dict[Shape, Array] = {}

    def add(self, function: Callable[..., Any], _category: str, _lifetime: str, alive: Mapping[str, Any], /, **arguments: Any) -> Array:
        """Evaluate a term and keep its sums; returns its values, not broadcast. Which stream it allocates on is declared in ``POOLS``."""
        value = np.asarray(function(**arguments), dtype=np.float64)
        self._count(value, POOLS.get(function.__name__, "default"), alive)
        self._note(card_of(function), value)
        return value

    def keep(self, line: Line) -> None:
        """Count a line that is made already."""
        self._count(line.value, line.pool, line.alive)
        self._note(line.card, line.value)

    def _count(self, value: Array, pool: str, alive: Mapping[str, Any]) -> None:
        if not (value.item(0) or value.any()):
            return
        if not alive:
            _put(self._all, value)
        elif all(type(share) is float for share in alive.values()):
            _put(self._together.setdefault((pool, tuple(alive.items())), {}), value)
        else:
            for moment, share in alive.items():
                _put(self._apart.setdefault((pool, moment), {}), value * share)

    def _note(self, card: Card, value: Array) -> None:
        if card.title in SPLIT_BY_SEQUENCE:
            _put(self._by_sequence, value)

    def split_by_sequence(self) -> Array:
        """Sum of ``SPLIT_BY_SEQUENCE``."""
        return _summed(self._by_sequence, self._empty)

    def total(self) -> Array:
        """Sum of the lines that belong to no moment."""
        return _summed(self._all, self._empty)

    def at(self, moment: str, *pools: str) -> Array:
        """Sum of what is alive at one moment (in some allocator pools, if named), in the shape it has."""
        spread, parts = self._by_moment(), dict[Shape, Array]()
        for pool in pools or spread:
            for value in spread.get(pool, {}).get(moment, {}).values():
                _put(parts, value)
        return _summed(parts, self._empty)

    @property
    def _empty(self) -> Shape:
        """Shape of a sum of nothing."""
        return ()

    def _by_moment(self) -> dict[str, dict[str, dict[Shape, Array]]]:
        """Sums by pool, moment and shape, made once all lines are in."""
        if self._spread:
            return self._spread
        for (pool, pattern), sums in self._together.items():
            for moment, share in pattern:
                there = self._spread.setdefault(pool, {}).setdefault(moment, {})
                for value in sums.values():
                    _put(there, value if share == 1.0 else value * share)
        for (pool, moment), sums in self._apart.items():
            for value in sums.values():
                _put(self._spread.setdefault(pool, {}).setdefault(moment, {}), value)
        return self._spread


class Ledger(Tally):
    """Lines in the order they were added, for ``size`` candidates, an entry each, with their sums."""

    def __init__(self, size: Shape) -> None:
        super().__init__(size)
        self.lines: list[Line] = []

    def add(self, function: Callable[..., Any], category: str, lifetime: str, alive: Mapping[str, Any], /, **arguments: Any) -> Array:
        """Evaluate a term for all candidates and keep it as a line; returns its values."""
        value = _spread_to(np.asarray(function(**arguments), dtype=np.float64), self.size)
        self.keep(Line(card_of(function), category, lifetime, arguments, value, alive, POOLS.get(function.__name__, "default")))
        return value

    def keep(self, line: Line) -> None:
        """Take a line in."""
        self.lines.append(line)
        super().keep(line)

    @property
    def _empty(self) -> Shape:
        return self.size


class Scope(Tally):
    """One model's way into a ledger that several share: its lines bear its role, and are alive at moments of its own and of the others.

    Attributes:
        own: what this model's moments are called in the shared ledger; moments that are not named there do not exist.
        others: moments of the other models, at which this one still holds what it holds at all ``lasting`` moments.
    """

    def __init__(self, into: Tally, role: str, own: Mapping[str, str], *, others: Sequence[str] = (), lasting: Sequence[str] = ()) -> None:
        super().__init__(into.size)
        self._into, self._role, self._own, self._others, self._lasting = into, role, own, others, lasting

    def add(self, function: Callable[..., Any], category: str, lifetime: str, alive: Mapping[str, Any], /, **arguments: Any) -> Array:
        """Evaluate a term and keep it in the shared ledger; returns its values."""
        value = np.asarray(function(**arguments), dtype=np.float64)
        if isinstance(self._into, Ledger):
            value = _spread_to(value, self.size)
        pool = POOLS.get(function.__name__, "default")
        line = Line(card_of(function), category, lifetime, arguments, value, self._alive(alive), pool)
        self._into.keep(line.under(self._role))
        return value

    def _alive(self, alive: Mapping[str, Any]) -> dict[str, Any]:
        there = {self._own[moment]: share for moment, share in alive.items() if moment in self._own}
        if self._others and all(moment in alive for moment in self._lasting):
            stays = reduce(_least, [alive[moment] for moment in self._lasting])
            there |= dict.fromkeys(self._others, stays)
        return there


def _least(one: Any, other: Any) -> Any:
    both = type(one) is float and type(other) is float
    return min(one, other) if both else np.minimum(one, other)


def _spread_to(value: Array, size: Shape) -> Array:
    return value if value.shape == (size if isinstance(size, tuple) else (size,)) else np.broadcast_to(value, size)


def _put(sums: dict[Shape, Array], value: Array) -> None:
    there = sums.get(value.shape)
    sums[value.shape] = value if there is None else there + value


def _summed(sums: Mapping[Shape, Array], empty: Shape) -> Array:
    """Small shapes first, so that large ones are touched once."""
    if not sums:
        return np.zeros(empty)
    first, *rest = sorted(sums.values(), key=lambda v: v.size)
    return sum(rest, first)


def chosen(first: Ledger, second: Ledger, takes_second: Array) -> Ledger:
    """One ledger that takes each candidate's entries from one of two with the same lines in the same order.

    Args:
        takes_second: whether a candidate's are taken from the second one.
    """

    def pick(one: Any, other: Any) -> Any:
        return one if one is other else np.where(takes_second, other, one)

    out = Ledger(first.size)
    for line, other in zip(first.lines, second.lines, strict=True):
        out.keep(
            line._replace(
                arguments={name: pick(line.arguments[name], other.arguments[name]) for name in line.arguments},
                value=pick(line.value, other.value),
                alive={moment: pick(line.alive[moment], other.alive[moment]) for moment in line.alive},
            )
        )
    return out


def formula_of(line: Line, index: int) -> str:
    """The line's equation with one candidate's numbers put in."""
    return line.card.with_numbers(line.arguments, index)
