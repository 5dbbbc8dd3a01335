"""Constants that are not from a specification: values, sources, ranges, and how each was obtained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from app.catalog.data import document
from app.domain.setup import Rates


@cache
def fitted_rates() -> Rates:
    """The constants the formulas read, as one frozen bundle."""
    constants: Mapping[str, Any] = document("fitted")["constants"]
    return Rates(**{name: entry["value"] for name, entry in constants.items()})
