"""Rows of a sweep as CSV: what the grid varies first, then the figures, under the names they have in a plan."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import orjson

from app.domain.plan import GpuMemory, ModelSummary, Settings, StepTime

_TEXT_BEFORE = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings that make a spreadsheet take a cell for a formula."""
_NOT_SHOWN = frozenset({"terms", "moments", "inferred", "interval_90_bytes", "interval_90_s", "expandable_bytes"})
_GPU = (*(f.name for f in fields(GpuMemory) if f.name not in _NOT_SHOWN), "peak_reserved_expandable_bytes")
_POOLS = ("host_per_node.peak_bytes", "host_per_node.capacity_bytes", "nvme_per_node.peak_bytes", "nvme_per_node.capacity_bytes")
COLUMNS: tuple[str, ...] = (
    "verdict", "summary", "shortfall_bytes", "engine_version",
    *(f"model.{f.name}" for f in fields(ModelSummary) if f.name not in _NOT_SHOWN),
    *(f"recommended.settings.{f.name}" for f in fields(Settings)), "recommended.settings.data_parallel",
    *(f"recommended.memory.gpu.{name}" for name in _GPU), *(f"recommended.memory.{name}" for name in _POOLS),
    *(f"recommended.memory.gpu.interval_90_bytes.{end}" for end in (0, 1)),
    "recommended.communication.bytes_per_step",
    *(f"recommended.time.{f.name}" for f in fields(StepTime) if f.name not in _NOT_SHOWN),
    *(f"recommended.time.interval_90_s.{end}" for end in (0, 1)),
    "recommended.cost.usd_per_hour", "recommended.cost.usd_per_billion_tokens",
)  # fmt: skip
"""Paths in a plan, each of which is a column of that name."""
_PARTS = [[int(part) if part.isdecimal() else part for part in path.split(".")] for path in COLUMNS]


def header(axes: Sequence[str]) -> bytes:
    """The first line."""
    return _csv([["index", *map(_cell, axes), *COLUMNS, "warnings", "error"]])


def table(rows: Iterable[bytes], axes: Sequence[str]) -> bytes:
    """A line for each row, which is JSON."""
    return _csv(_cells(orjson.loads(row), axes) for row in rows)


def _cells(row: dict[str, Any], axes: Sequence[str]) -> Iterator[object]:
    yield row["index"]
    yield from (_cell(row["axes"][path]) for path in axes)
    yield from (_cell(_at(row, parts)) for parts in _PARTS)
    yield " ".join(warning["code"] for warning in row.get("warnings", ()))
    yield _cell(row["error"]["detail"] if "error" in row else None)


def _at(row: Any, parts: Sequence[str | int]) -> Any:
    """What is at a path; None where the row has nothing there, as one with an error."""
    for part in parts:
        if not row or (isinstance(row, dict) and part not in row):
            return None
        row = row[part]
    return row


def _cell(value: Any) -> object:
    """A value as a cell: numbers as they are, nothing for null, and text that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return f"'{text}" if text.startswith(_TEXT_BEFORE) else text


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
