"""Keys that a file has twice."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Hit
from app.audit.registry import Card, rule
from app.audit.subject import Subject


@rule(
    "DS199",
    Card(
        title="a key stands twice in one block",
        severity="error",
        effect="fails",
        why="DeepSpeed refuses to guess which of the two is meant: its reader raises ValueError.",
        fix="Keep one of them.",
        source="ds-config",
        kinds=frozenset({"deepspeed"}),
    ),
)
def duplicate_keys(subject: Subject) -> Iterator[Hit]:
    """Duplicates in the text; the last of them is in the mapping."""
    for key in subject.duplicate_keys:
        yield Hit(path=key, message=f"{key} stands twice in one block; DeepSpeed raises “Duplicate keys in DeepSpeed config”.")
