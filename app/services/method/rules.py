"""Docstrings as the pages show them, and the rules that have no figure of their own and so no card."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.domain.traffic.collectives import Group, ring_bytes
from app.domain.traffic.overlap import exposed_s, overlap_fracs, windows_s

_SECTION = re.compile(r"^(Equation|Args|Returns|Raises|Assumes|Source|Example|Attributes):?", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A docstring taken apart.

    Attributes:
        text: what stands before its sections, a paragraph each.
        equation, assumes, source: its sections of these names, in one line each; empty where it has none.
    """

    text: tuple[str, ...]
    equation: str = ""
    assumes: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A function that decides something for every candidate.

    Attributes:
        title: what it decides.
        where: module and name.
        explained: its docstring.
    """

    title: str
    where: str
    explained: Explained


def explained(doc: str) -> Explained:
    """Take a docstring apart.

    Example:
        >>> explained("What is sent.\\n\\nEquation: P · bytes\\n\\nSource: a paper.").equation
        'P · bytes'
    """
    plain = inspect.cleandoc(doc).replace("``", "")
    first = _SECTION.search(plain)
    text = plain[: first.start()] if first else plain
    sections = {
        name: _flat(part) for name, part in re.findall(r"^(Equation|Assumes|Source): (.*?)(?=\n\s*\n|\Z)", plain, re.MULTILINE | re.DOTALL)
    }
    return Explained(
        text=tuple(_flat(part) for part in text.split("\n\n") if part.strip()),
        equation=sections.get("Equation", ""),
        assumes=sections.get("Assumes", ""),
        source=sections.get("Source", ""),
    )


def _flat(text: str) -> str:
    return " ".join(text.split())


def _rule(title: str, function: Callable[..., Any]) -> Rule:
    where = f"{function.__module__.removeprefix('app.domain.')}.{function.__qualname__}"
    return Rule(title=title, where=where, explained=explained(function.__doc__ or ""))


TRAFFIC_RULES = (
    _rule("bytes of a ring", ring_bytes),
    _rule("time of a collective", Group.collective_s),
    _rule("bandwidth that is reached", Group.bus_bytes_per_s),
    _rule("exchanges", Group.exchange_bytes_per_s),
    _rule("time of an empty call", Group.latency_s),
)
TIME_RULES = (
    _rule("what can hide a transfer", windows_s),
    _rule("what a hidden transfer costs", overlap_fracs),
    _rule("what stays exposed", exposed_s),
)
