"""How deep a JSON document is."""

from __future__ import annotations

from typing import Any


def too_deep(value: Any, limit: int) -> bool:
    """Whether objects and lists are nested more than ``limit`` deep; level by level, so that depth costs no stack.

    Example:
        >>> too_deep([[1]], 1), too_deep([[1]], 2), too_deep(1, 0)
        (True, False, False)
    """
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        if not level:
            return False
        inner = (item for box in level for item in (box.values() if isinstance(box, dict) else box))
        level = [item for item in inner if isinstance(item, (dict, list))]
    return bool(level)
