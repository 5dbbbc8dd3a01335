"""Amounts of memory in running text.

torch, DeepSpeed and Metal divide by 1,024 whether they print GiB or GB; what people and container runtimes say of a node is as
they say it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SIZE = r"(?<![\d.,])(?P<{0}>\d[\d,]{{0,18}}(?:\.\d{{1,6}})?)\s?(?P<{0}_unit>[KMGT]i?B|bytes|B)\b"
"""Pattern of one amount; the name is put in. Every repetition is bounded, so that a search takes time linear in the text."""
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class Size:
    """An amount with the half unit of its last printed digit, both in bytes."""

    bytes: int
    rounding: float


def size_of(match: re.Match[str], name: str, *, binary: bool = True) -> Size | None:
    """The amount a pattern found under a name; None where that part of the pattern is absent.

    Args:
        binary: read GB as 2³⁰, as torch's own messages mean it.
    """
    text, unit = match.groupdict().get(name), match.groupdict().get(f"{name}_unit")
    if not text or not unit:
        return None
    power = 0 if unit.lower() in ("b", "bytes") else _POWERS[unit[0].upper()]
    scale = 1024**power if binary or "i" in unit else 1000**power
    digits = text.replace(",", "")
    decimals = len(digits.partition(".")[2])
    return Size(round(float(digits) * scale), 0.5 * scale / 10**decimals if power else 0.5)


def named(name: str) -> str:
    """The pattern of an amount, its groups under this name."""
    return SIZE.format(name)


def search_size(pattern: re.Pattern[str], text: str, name: str = "x", *, binary: bool = True) -> int | None:
    """Bytes of the last place a pattern matches; None where it does not."""
    found = None
    for match in pattern.finditer(text):
        size = size_of(match, name, binary=binary)
        found = size.bytes if size else found
    return found
