"""What every chart is: a Vega-Lite specification with its message in one sentence and its table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers of a chart: ``columns`` with units in their names, ``rows`` of exact values."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]

    def csv(self) -> str:
        """The table as RFC 4180 text with a header line."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return out.getvalue()

    def shown(self) -> list[list[str]]:
        """Cells as text: thousands separated, fractions with four significant digits."""
        return [[_text(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One chart.

    Attributes:
        name: as in its address.
        title: what it shows, without a full stop.
        message: what it says, in one sentence: the text alternative.
        spec: Vega-Lite, with colours by name (``@ink``); ``style.themed`` puts them in.
        table: the numbers that are drawn.
        height: of the drawing, in CSS pixels, for the room that a page leaves for it.
    """

    name: str
    title: str
    message: str
    spec: Spec
    table: Table
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """How a chart is to be drawn.

    Attributes:
        px: width in CSS pixels, labels included.
        links: addresses that pin the recommended plan and its alternatives, in their order; empty where there are none.
    """

    px: int
    links: Sequence[str] = ()


Document = Mapping[str, Any]


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.4g}" if isinstance(cell, float) and abs(cell) < 1e4 else f"{cell:,.0f}" if isinstance(cell, float) else cell
