"""Every source, and what cites it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.catalog.claims import load_claims
from app.catalog.data import document
from app.domain.sources import SOURCES
from app.services.method.figures import all_cards

CATALOGUES = {"gpus": "GPUs", "instances": "Instances", "rates": "Rates"}
"""Data files that name their sources by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """A source with what cites it.

    Attributes:
        key, title, url: the source; no address where it is an observation or is named in words.
        cards, claims: their keys.
        entries: how many entries of a catalogue cite it.
    """

    key: str
    title: str
    url: str = ""
    cards: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    entries: int = 0


@cache
def cited_by_formulas() -> tuple[Cited, ...]:
    """The registry of the engine, in its order."""
    cards, claims = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for key, card in all_cards().items():
        cards[card.source].append(key)
    for claim in load_claims():
        for source in claim.sources:
            claims[source].append(claim.key)
    return tuple(
        Cited(key=s.key, title=s.title, url=s.url, cards=tuple(cards[s.key]), claims=tuple(claims[s.key])) for s in SOURCES.values()
    )


@cache
def cited_by_catalogue(name: str) -> tuple[Cited, ...]:
    """Sources of a data file, the most cited first: ``gpus``, ``instances``, ``rates``, ``models`` or ``keys``."""
    data = document(name)
    if name not in CATALOGUES:
        texts = Counter(entry["source"] for entry in data[name])
        return tuple(Cited(key="", title=text, url=_address(text), entries=count) for text, count in texts.most_common())
    counts = Counter(key for part, value in data.items() if part != "sources" for key in _keys_in(value))
    rows = [Cited(key=key, title=title, url=_address(title), entries=counts[key]) for key, title in data["sources"].items()]
    return tuple(sorted(rows, key=lambda row: -row.entries))


def _address(text: str) -> str:
    """The address in a source that begins with one."""
    first = text.split(" ", maxsplit=1)[0]
    return first if first.startswith("https://") else ""


def _keys_in(value: Any) -> Iterator[str]:
    """Source keys of every entry below a value, each once an entry."""
    if isinstance(value, Mapping):
        named = [value[key] for key in ("source", "sources") if key in value]
        yield from dict.fromkeys(key for found in named for key in _strings(found))
        for name, part in value.items():
            if name not in ("source", "sources"):
                yield from _keys_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from _keys_in(part)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
