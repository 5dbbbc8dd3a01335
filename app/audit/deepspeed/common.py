"""What the rules about a ds_config.json share."""

from __future__ import annotations

from typing import Any

from app.audit.finding import Change
from app.audit.subject import Kind
from app.domain.units import GB, format_number

DS: frozenset[Kind] = frozenset({"deepspeed"})
LAUNCHED_BY_HF = frozenset({"hf_trainer"})


def edit(path: str, value: Any = None) -> Change:
    """A change that writes a value at a dotted path."""
    return Change(path=tuple(path.split(".")), value=value)


def drop(path: str) -> Change:
    """A change that takes a key out."""
    return Change(path=tuple(path.split(".")), remove=True)


def gb(num_bytes: float) -> str:
    """Bytes in GB, as the libraries' own messages count."""
    return f"{format_number(num_bytes / GB)} GB"
