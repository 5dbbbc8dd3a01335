"""Reads the catalogue's data files, once each, and finds entries by the names people use."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from app.domain.errors import InvalidRequestError, Loc

FOLDER = Path(__file__).resolve().parent
SUGGESTIONS = 4

T = TypeVar("T")


@cache
def document(name: str) -> Mapping[str, Any]:
    """The data file ``name``.json as it is; callers must not change it."""
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def plain(name: str) -> str:
    """A name without case, spaces and punctuation.

    Example:
        >>> plain("H100 80GB HBM3"), plain("h100_80gb-hbm3")
        ('h10080gbhbm3', 'h10080gbhbm3')
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Index(Generic[T]):
    """Entries by each of their names, and the nearest names for one that is unknown.

    Args:
        what: what an entry is called in messages.
        entries: the catalogue.
        key_of: an entry's own key, which the messages suggest.
        names_of: every name it goes by, its key included.
    """

    def __init__(self, what: str, entries: Iterable[T], *, key_of: Callable[[T], str], names_of: Callable[[T], Iterable[str]]) -> None:
        self._what = what
        self._by_key: dict[str, T] = {}
        self._by_name: dict[str, dict[str, T]] = {}
        for entry in entries:
            self._by_key[key_of(entry)] = entry
            for name in names_of(entry):
                self._by_name.setdefault(plain(name), {})[key_of(entry)] = entry

    def find(self, name: str, loc: Loc) -> T:
        """The one entry of that name.

        Raises:
            InvalidRequestError: none or several go by it; the hint names them, or the nearest.
        """
        if name in self._by_key:
            return self._by_key[name]
        found = self._by_name.get(plain(name), {})
        if len(found) == 1:
            return next(iter(found.values()))
        shown = repr(name[:80])
        if found:
            keys = ", ".join(found)
            raise InvalidRequestError.at(*loc, msg=f"{shown} names several entries: {keys}", hint="say which one")
        nearest = ", ".join(self.nearest(name))
        raise InvalidRequestError.at(
            *loc,
            msg=f"{shown} is not a known {self._what}",
            hint=f"the nearest are {nearest}" if nearest else f"GET /catalog/{self._what.lower()}s lists them",
        )

    def nearest(self, name: str) -> list[str]:
        """Keys of the entries whose names are closest to one that is unknown, the closest first."""
        wanted = plain(name[:80])
        if not wanted:
            return []
        inside = sorted((known for known in self._by_name if wanted in known), key=len)
        close = difflib.get_close_matches(wanted, self._by_name, n=SUGGESTIONS, cutoff=0.6)
        keys = (key for known in (*inside, *close) for key in self._by_name[known])
        return list(dict.fromkeys(keys))[:SUGGESTIONS]
