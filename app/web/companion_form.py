"""Rows of other models in the form: how many are shown, and what their fields mean together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.domain.errors import Loc
from app.web.fields import MAX_COMPANIONS, all_fields

COMPANIONS = "companions"
"""Field of the form's own: how many rows it shows."""


def rows_used(names: Iterable[str]) -> int:
    """How many rows the fields of a form speak of."""
    fields = all_fields()
    return max([0, *(row + 1 for name in names if name in fields and (row := row_of(name)) is not None)])


def row_of(name: str) -> int | None:
    """The row a field belongs to, from 0; None for other fields."""
    path = all_fields()[name].path
    return path[1] if path[0] == COMPANIONS and isinstance(path[1], int) else None


def rows_asked(pairs: Iterable[tuple[str, str]]) -> int:
    """How many rows are asked to be shown; anything that is no such number asks for none."""
    typed = [text.strip() for name, text in pairs if name == COMPANIONS]
    return min(MAX_COMPANIONS, int(typed[-1])) if typed and re.fullmatch(r"\d{1,3}", typed[-1]) else 0


def at_its_row(loc: Loc, names: Iterable[str]) -> Loc:
    """A place in the request's list of companions as the row of the form it was typed in: empty rows are left out of the list.

    Args:
        loc: place in the request.
        names: fields that were filled in.
    """
    if loc[:1] != (COMPANIONS,) or len(loc) < 2:
        return loc
    used = sorted({row for name in names if name in all_fields() and (row := row_of(name)) is not None})
    number = loc[1]
    return (COMPANIONS, used[number], *loc[2:]) if isinstance(number, int) and number < len(used) else loc


def listed(document: dict[str, Any]) -> None:
    """Turn numbered rows into a list; those that are empty are not in it."""
    if rows := document.get(COMPANIONS):
        document[COMPANIONS] = [{"model": {}} | rows[number] for number in sorted(rows)]


def models_of(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The models of all rows."""
    return [row["model"] for row in tree.get(COMPANIONS, {}).values() if "model" in row]
