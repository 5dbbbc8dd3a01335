"""Reading a configuration by dotted path, whatever is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MISSING: Any = object()
"""Where a path leads to nothing; a key that holds null is there."""


def at(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path; ``default`` where a step of it is missing or no mapping.

    Example:
        >>> at({"zero_optimization": {"stage": 2}}, "zero_optimization.stage")
        2
    """
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return default
        value = value[key]
    return value


def has(config: Mapping[str, Any], path: str) -> bool:
    """Whether the key is written, even as null."""
    return at(config, path, MISSING) is not MISSING


def block(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The mapping at a path; empty where there is none, or something else."""
    value = at(config, path)
    return value if isinstance(value, Mapping) else {}


def whole(value: Any) -> int | None:
    """A number as the integer DeepSpeed reads; None for text, fractions, truth values and anything else.

    Example:
        >>> whole(5e8), whole("5e8"), whole(True)
        (500000000, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return value
    return int(value) if value.is_integer() else None
