"""Terms with cards: a plain elementwise function, and beside it the text that explains its figure.

``@term`` registers the card and returns the function untouched, so the planner sums plain numbers over thousands of
candidates while the page renders the card of the winner with its numbers put in. Both come from the same function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from app.domain.sources import source as find_source
from app.domain.units import Exactness, format_number

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Card:
    """What explains a term.

    Attributes:
        key: module and name of the function, unique.
        title: name of the term, as shown.
        equation: formula in the function's own argument names.
        source: key of the source it is taken from.
        exactness: exact, derived or fitted.
        changes_it: which settings move the figure.
        sureness: the word of ``exactness``.
        template, named: the equation with a slot for each argument that it names, and these names in order.
    """

    key: str
    title: str
    equation: str
    source: str
    exactness: Exactness
    changes_it: str
    doc: str
    sureness: str

    template: str
    named: tuple[str, ...]

    def with_numbers(self, arguments: Mapping[str, Any], index: int = 0) -> str:
        """The equation with the names of arguments replaced by one candidate's values."""
        return self.template % tuple([_show(entry(arguments[name], index)) for name in self.named])


def entry(value: Any, index: int) -> float:
    """One candidate's number out of a column or a scalar."""
    if isinstance(value, np.ndarray):
        return float(value.item(index if value.ndim else 0))
    return float(value)


def _template(equation: str, function: Callable[..., Any]) -> tuple[str, tuple[str, ...]]:
    """An equation with a slot for each name of an argument, and these names in order."""
    parts, names = re.split(r"([A-Za-z_][A-Za-z0-9_]*)", equation.replace("%", "%%")), signature(function).parameters
    return "".join("%s" if part in names else part for part in parts), tuple(part for part in parts if part in names)


CARDS: dict[str, Card] = {}
_OF_FUNCTION: dict[Callable[..., Any], Card] = {}


def term(*, title: str, equation: str, source: str, exactness: str, changes_it: str = "") -> Callable[[F], F]:
    """Register a card for a formula function and return the function unchanged.

    Args:
        title: name of the term in the ledger.
        equation: formula written with the function's argument names.
        source: key in ``sources.SOURCES``.
        exactness: ``exact``, ``derived`` or ``fitted``.
        changes_it: what a user can change to move this figure.
    """
    find_source(source)

    def register(function: F) -> F:
        key = f"{function.__module__.removeprefix('app.domain.')}.{function.__name__}"
        CARDS[key] = Card(
            key,
            title,
            equation,
            source,
            Exactness(exactness),
            changes_it,
            (function.__doc__ or "").strip(),
            exactness,
            *_template(equation, function),
        )
        _OF_FUNCTION[function] = CARDS[key]
        return function

    return register


def card_of(function: Callable[..., Any]) -> Card:
    """The card of a registered term function."""
    return _OF_FUNCTION[function]


def _show(number: float) -> str:
    if number.is_integer():
        return f"{int(number):,}"
    return format_number(number)
