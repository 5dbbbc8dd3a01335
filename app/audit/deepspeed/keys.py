"""Every key of a ds_config.json: type, bounds, default and releases, as the parser of DeepSpeed 0.17.1 to 0.19.8 has them.

The table is plain data, in ``keys.json`` beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.domain.versions import release_of

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One key.

    Attributes:
        path: dotted, as documented; ``also`` is another name of the same field.
        types: what the parser takes, of int, float, bool, str, dict, list, any; ``null`` where null is taken too.
        choices: the only values taken; empty for any.
        bounds: of ge, gt, le, lt; ``earlier`` are those of releases before ``earlier_until``.
        defaults: (first release, value) where the key is left out.
        since, until: first release that has it, and first that refuses it.
        replaced_by: successor of a deprecated key.
    """

    path: str
    also: str = ""
    types: tuple[str, ...]
    null: bool = False
    choices: tuple[Any, ...] = ()
    bounds: Mapping[str, float]
    earlier: Mapping[str, float]
    earlier_until: str = ""
    defaults: tuple[tuple[str, Any], ...]
    since: str = ""
    until: str = ""
    replaced_by: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def block(self) -> str:
        """The path without its last part; empty at the top."""
        return self.path.rpartition(".")[0]

    def default(self, release: str) -> Any:
        """What a release takes where the key is left out."""
        wanted = release_of(release)
        return [value for since, value in self.defaults if not since or release_of(since) <= wanted][-1]

    def known_to(self, release: str) -> bool:
        """Whether the release has the key."""
        wanted = release_of(release)
        return not (self.since and wanted < release_of(self.since)) and not (self.until and wanted >= release_of(self.until))


@cache
def _table() -> Mapping[str, Any]:
    document: dict[str, Any] = json.loads(Path(__file__).with_name("keys.json").read_text(encoding="utf-8"))
    return MappingProxyType(document)


@cache
def known_keys() -> Mapping[str, Known]:
    """Every key by its documented path."""
    return MappingProxyType({row["key"]: _known(row) for row in _table()["keys"]})


@cache
def strict_blocks() -> frozenset[str]:
    """Blocks whose unknown keys the parser refuses."""
    return frozenset(_table()["strict"])


@cache
def loose_blocks() -> frozenset[str]:
    """Blocks whose unknown keys it drops without a word; the empty path is the top."""
    return frozenset(_table()["loose"])


@cache
def names_in(block: str) -> Mapping[str, Known]:
    """Keys of a block by each name they go by; ``bfloat16`` is read like ``bf16``."""
    block = {"bfloat16": "bf16"}.get(block, block)
    return MappingProxyType(
        {name: known for known in known_keys().values() if known.block == block for name in (known.name, known.also) if name}
    )


@cache
def places_of(name: str) -> tuple[str, ...]:
    """Dotted paths of the keys of that name, outermost first."""
    found = [known.path for known in known_keys().values() if name in (known.name, known.also)]
    return tuple(sorted(found, key=lambda path: path.count(".")))


def _known(row: Mapping[str, Any]) -> Known:
    until, earlier = row.get("before", ("", {}))
    return Known(
        path=row["key"], also=row.get("also", ""), types=tuple(row["type"].split("|")), null=row.get("null", False),
        choices=tuple(row.get("choices", ())), bounds={key: row[key] for key in ("ge", "gt", "le", "lt") if key in row},
        earlier=earlier, earlier_until=until,
        defaults=tuple((since, value) for since, value in row.get("defaults", [["", row.get("default")]])),
        since=row.get("since", ""), until=row.get("until", ""), replaced_by=row.get("replaced_by", ""),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A value as the parser reads it, or what is wrong with it in words."""

    value: Any = None
    wrong: str = ""
    choice: bool = False


def parse(known: Known, value: Any, release: str) -> Parsed:
    """Read a value as pydantic does in the blocks it guards.

    Example:
        >>> bucket = known_keys()["zero_optimization.reduce_bucket_size"]
        >>> parse(bucket, 5e8, "0.19.8").value, parse(bucket, "5e8", "0.19.8").wrong
        (500000000, 'the text "5e8" is no integer')
    """
    if value is None:
        return Parsed() if known.null or "any" in known.types else Parsed(wrong=f"null is no {_word(known)}")
    read: list[Parsed] = [_READERS[kind](value) for kind in known.types]
    found = next((parsed for parsed in read if not parsed.wrong), read[0])
    if found.wrong or found.value is None:
        return found
    given = found.value if isinstance(found.value, list) else [found.value]
    if known.choices and any(not isinstance(one, (int, str, float)) or one not in known.choices for one in given):
        listed = ", ".join(str(choice) for choice in known.choices[:7])
        return Parsed(wrong=f"{shown(value)} is none of {listed}", choice=True)
    return _bounded(known, found, release)


def _bounded(known: Known, found: Parsed, release: str) -> Parsed:
    if isinstance(found.value, bool) or not isinstance(found.value, (int, float)):
        return found
    older = bool(known.earlier_until) and release_of(release) < release_of(known.earlier_until)
    for key, bound in (known.earlier if older else known.bounds).items():
        holds = {"ge": found.value >= bound, "gt": found.value > bound, "le": found.value <= bound, "lt": found.value < bound}[key]
        if not holds:
            words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}[key]
            return Parsed(wrong=f"{shown(found.value)} is not {words} {bound:g}")
    return found


def shown(value: Any) -> str:
    """A value as it stands in the file, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, (int, float)):
        return f"{value:,}"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _word(known: Known) -> str:
    words = {"int": "integer", "float": "number", "bool": "truth value", "str": "text", "dict": "block", "list": "list"}
    return words.get(known.types[0], "value")


def _no_dtype(value: Any) -> Parsed:
    return Parsed(wrong=f"{shown(value)} is no torch.dtype, which JSON cannot hold")


Reader = Callable[[Any], Parsed]


def _integer(value: Any) -> Parsed:
    if isinstance(value, str):
        try:
            number = float(value) if "." in value and "e" not in value.lower() else int(value)
        except ValueError:
            return Parsed(wrong=f"the text {shown(value)} is no integer")
        return _integer(number)
    if isinstance(value, bool):
        return Parsed(value=int(value))
    if not isinstance(value, (int, float)):
        return Parsed(wrong=f"{shown(value)} is no integer")
    if value != value or value in (float("inf"), float("-inf")) or not float(value).is_integer():
        return Parsed(wrong=f"{shown(value)} is no whole number")
    return Parsed(value=int(value))


def _number(value: Any) -> Parsed:
    if isinstance(value, str):
        try:
            return Parsed(value=float(value))
        except ValueError:
            return Parsed(wrong=f"the text {shown(value)} is no number")
    if isinstance(value, bool):
        return Parsed(value=float(value))
    return Parsed(value=value) if isinstance(value, (int, float)) else Parsed(wrong=f"{shown(value)} is no number")


def _truth(value: Any) -> Parsed:
    if isinstance(value, bool):
        return Parsed(value=value)
    if isinstance(value, (int, float)) and value in (0, 1):
        return Parsed(value=bool(value))
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return Parsed(value=value.lower() in _TRUE)
    return Parsed(wrong=f"{shown(value)} is neither true nor false")


def _instance(kind: type, word: str) -> Reader:
    return lambda value: Parsed(value=value) if isinstance(value, kind) else Parsed(wrong=f"{shown(value)} is no {word}")


_READERS: Mapping[str, Reader] = {
    "int": _integer, "float": _number, "bool": _truth, "str": _instance(str, "text"), "dict": _instance(Mapping, "block"),
    "list": _instance(list, "list"), "dtype": _no_dtype, "any": lambda value: Parsed(value=value),
}  # fmt: skip
