"""The words of the product and the symbols of its equations, a sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from app.catalog.data import document


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its meaning; ``key`` is its anchor."""

    key: str
    word: str
    meaning: str


@cache
def load_terms() -> tuple[Word, ...]:
    """Words of the field as they are used here, in teaching order."""
    return tuple(Word(**entry) for entry in document("glossary")["terms"])


@cache
def load_symbols() -> dict[str, Word]:
    """Names in the equations of the cards."""
    return {entry["key"]: Word(**entry) for entry in document("glossary")["symbols"]}
