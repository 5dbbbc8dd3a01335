"""Bytes, dtypes, and the parsing and printing of quantities.

Inside the product everything is integers of bytes, elements (``_numel``) or floats of seconds; GiB and GB exist only here.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum

GIB = 2**30
MIB = 2**20
GB = 10**9

DTYPE_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Bytes of one element of each dtype the product names."""


class Exactness(StrEnum):
    """How far a number can be trusted: counted, derived from the library's code, or fitted to measurements."""

    EXACT = "exact"
    DERIVED = "derived"
    FITTED = "fitted"


_SUFFIX = {
    "": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_quantity(text: str, *, binary_k: bool = False) -> float:
    """Read ``"4,096"``, ``"8k"``, ``"7.5e9"`` or ``"80 GiB"`` as a plain number.

    Args:
        text: what a person typed.
        binary_k: read a bare ``k`` as 1,024, as people mean it for sequence lengths.

    Returns:
        The number, in the unit its suffix scales to (bytes for byte suffixes).

    Raises:
        ValueError: the text is not a number with an optional known suffix.

    Example:
        >>> parse_quantity("8k", binary_k=True), parse_quantity("80 GiB"), parse_quantity("4,096")
        (8192.0, 85899345920.0, 4096.0)
    """
    match = _QUANTITY.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a number")
    suffix = match[2].lower()
    if suffix not in _SUFFIX:
        raise ValueError(f"{text!r} ends in an unknown unit {match[2]!r}")
    scale = 1024 if binary_k and suffix == "k" else _SUFFIX[suffix]
    value = float(match[1].replace(",", "").replace("_", "")) * scale
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def format_gib(num_bytes: float) -> str:
    """Bytes as GiB with at most three significant digits.

    Example:
        >>> format_gib(65927053722), format_gib(1610612736), format_gib(0)
        ('61.4 GiB', '1.5 GiB', '0 GiB')
    """
    return f"{format_number(num_bytes / GIB)} GiB"


def format_number(value: float) -> str:
    """A number with three significant digits at most and thousands separators.

    Example:
        >>> format_number(9812.4), format_number(0.0312), format_number(2)
        ('9,810', '0.0312', '2')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    text = f"{rounded:,.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_count(value: float) -> str:
    """A count of parameters or tokens in words: ``8.03 B``.

    Example:
        >>> format_count(8_030_261_248), format_count(1_500_000), format_count(512)
        ('8.03 B', '1.5 M', '512')
    """
    for scale, word in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if abs(value) >= scale:
            return format_number(value / scale) + word
    return format_number(value)
