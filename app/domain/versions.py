"""Versions of the libraries a plan is for, and which configuration keys each of them has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Below = Literal["refuse", "drop", "script", "weaker"]
"""What a release older than a key is given: no plan, a file without it, a script that does it instead, or the key as it is."""

_RELEASE = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One configuration key of a library.

    Attributes:
        name: its dotted path in the file, followed in words by where it means something new.
        since, until: first release that has it, and first that refuses it; empty for none that is claimed.
        inert: it is parsed and changes nothing.
        below: what releases before ``since`` are given.
        loses: what is lost without it; replaced_by: what does the same.
        defaults: (first release, value), in that order.
    """

    name: str
    library: str
    since: str = ""
    until: str = ""
    inert: bool = False
    below: Below | None = None
    loses: str = ""
    replaced_by: str = ""
    defaults: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The releases a plan is written for.

    Attributes:
        given: (library, release) of those that are named.
        keys: the keys that not every claimed release has, by library and name.
    """

    given: tuple[tuple[str, str], ...]
    keys: tuple[Key, ...] = ()

    def of(self, library: str) -> str:
        """The release of a library; empty where none is named."""
        return dict(self.given).get(library, "")

    def lacking(self, library: str, name: str) -> Key | None:
        """The key of that name, if the named release is older than it."""
        if not self.of(library):
            return None
        release = release_of(self.of(library))
        found = (key for key in self.keys if key.library == library and key.name == name)
        return next((key for key in found if key.since and release < release_of(key.since)), None)


def release_of(text: str) -> tuple[int, int, int]:
    """The numbers of a release; a local or development suffix belongs to the release it names.

    Raises:
        ValueError: it does not start with two or three numbers.

    Example:
        >>> release_of("0.19.8"), release_of("2.13.0+cu130"), release_of("2.9")
        ((0, 19, 8), (2, 13, 0), (2, 9, 0))
    """
    found = _RELEASE.match(text.strip().removeprefix("v"))
    if found is None:
        raise ValueError(f"{text[:40]!r} is no version")
    first, second, third = (*map(int, found[0].split(".")), 0)[:3]
    return first, second, third


def default_in(key: Key, release: str) -> Any:
    """What a release takes where the key is left out; None where that is not known.

    Example:
        >>> clipping = Key(name="gradient_clipping", library="deepspeed", defaults=(("", 0.0), ("0.19.3", 1.0)))
        >>> default_in(clipping, "0.19.2"), default_in(clipping, "0.19.3")
        (0.0, 1.0)
    """
    values = [value for since, value in key.defaults if not since or release_of(since) <= release_of(release)]
    return values[-1] if values else None


def paths_of(config: Mapping[str, Any], before: str = "") -> list[str]:
    """Dotted paths of every key of a configuration, outermost first.

    Example:
        >>> paths_of({"aio": {"queue_depth": 16}})
        ['aio', 'aio.queue_depth']
    """
    found = []
    for name, value in config.items():
        found.append(before + name)
        if isinstance(value, Mapping):
            found += paths_of(value, f"{before}{name}.")
    return found
