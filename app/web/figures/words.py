"""The words of a chart in the page's language: its texts are data, so they are put in place before it is drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.web.figures.figure import Cell, Figure, Table
from app.web.languages import current, in_words

_NOT_WORDS = frozenset({"colour", "ink", "href", "name", "type"})
"""Fields of data whose texts are read by the drawing."""


def translated(figure: Figure) -> Figure:
    """The chart with titles, labels and the texts of its data in the page's language."""
    if not current().folder:
        return figure
    table = Table(columns=tuple(in_words(c) for c in figure.table.columns), rows=[tuple(map(_cell, row)) for row in figure.table.rows])
    return replace(figure, title=in_words(figure.title), message=in_words(figure.message), spec=_node(figure.spec), table=table)


def _cell(cell: Cell) -> Cell:
    return in_words(cell) if isinstance(cell, str) else cell


def _node(node: Any) -> Any:
    if isinstance(node, list):
        return [_node(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _words(key, value) for key, value in node.items()}


def _words(key: str, value: Any) -> Any:
    if key == "title" and isinstance(value, str):
        return in_words(value)
    if key in ("domain", "sort") and isinstance(value, list):
        return [in_words(item) if isinstance(item, str) else item for item in value]
    if key == "values" and isinstance(value, list):
        return [_row(row) if isinstance(row, dict) else row for row in value]
    return _node(value)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {key: in_words(value) if isinstance(value, str) and key not in _NOT_WORDS else value for key, value in row.items()}
