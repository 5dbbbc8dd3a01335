"""Charts as Vega-Lite specifications: one module a chart, made of a plan's document or of a curve; no formula and no drawing here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.services.what_if import VARIABLES, Variable
from app.web.figures.alternatives import alternatives
from app.web.figures.figure import Canvas, Document, Figure
from app.web.figures.memory import memory
from app.web.figures.states import states
from app.web.figures.step import step
from app.web.figures.what_if import TITLES, what_if

__all__ = ["CURVES", "NAMES", "OF_DOCUMENT", "TITLES", "Canvas", "Figure", "what_if"]

OF_DOCUMENT: Mapping[str, Callable[[Document, Canvas], Figure]] = {
    "memory": memory, "step": step, "alternatives": alternatives, "states": states,
}  # fmt: skip
"""Charts of what the document holds."""
CURVES: Mapping[str, Variable] = {f"what-if-{variable}": variable for variable in VARIABLES}
"""Charts of curves that the engine computes."""
NAMES = (*OF_DOCUMENT, *CURVES)
