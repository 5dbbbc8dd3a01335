"""Saved plans set against each other, and one against what today's engine answers: JSON, or a page for a browser."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.domain.units import format_gib, format_number
from app.services.compare import compare
from app.services.replan import replan
from app.web.api import json_response
from app.web.charts import seconds
from app.web.comparing import CompareOut, ReplanOut
from app.web.deps import HubDep, SavedPlansDep
from app.web.problems import prefers_html
from app.web.rendering import page, percent
from app.web.saved_pages import VARY, day
from app.web.schemas import PAGE, problems
from app.web.views import VERDICTS

router = APIRouter(tags=["saved plans"])
_SECTIONS = {"gpu_memory": "GPU memory", "host_memory": "Host memory per node", "nvme_memory": "NVMe per node"}
_SUFFIXES = {"bytes": "_bytes", "s": "_s", "frac": "_frac"}
Ids = Annotated[
    list[str], Query(max_length=10, description="Ids of two to four saved plans, with commas between them or given repeatedly.")
]


@router.get(
    "/plans/compare",
    responses={200: {"model": CompareOut, "content": PAGE}, **problems(404, 422, 429, 503)},
    summary="Compare saved plans",
    response_model=None,
)
def get_compare(request: Request, saved: SavedPlansDep, ids: Ids) -> Response:
    """Two to four plans side by side, differences first. A browser gets them as a page."""
    wanted = [part.strip() for given in ids for part in given.split(",") if part.strip()]
    found = compare(saved, wanted)
    if not prefers_html(request):
        return json_response(found, headers=VARY)
    plans = [plan | {"word": VERDICTS[plan["verdict"]], "created": day(plan["created_at"])} for plan in found["plans"]]
    return page(request, "compare.html", plans=plans, differences=_grouped(found["differences"]), same=_grouped(found["same"]))


@router.post(
    "/plans/{plan_id}/replan",
    responses={200: {"model": ReplanOut, "content": PAGE}, **problems(404, 409, 422, 429, 503)},
    summary="Plan again with today's engine",
    response_model=None,
)
def post_replan(request: Request, plan_id: str, saved: SavedPlansDep, hub: HubDep) -> Response:
    """The same request under today's engine, with what moved and why. Nothing is saved; the saved plan stays as it is."""
    kept = saved.get(plan_id)
    found = replan(kept, hub)
    if not prefers_html(request):
        return json_response(found, headers=VARY)
    verdicts = [{"key": key, "word": VERDICTS[key], "summary": text} for key, text in _verdicts(kept.answer, found)]
    moved = [_cells(row | {"values": [row["then"], row["now"]]}) for row in found["changes"]["moved"]]
    return page(
        request,
        "replan.html",
        about=found["replan_of"] | {"created": day(kept.created_at)},
        changes=found["changes"],
        verdicts=verdicts,
        moved=_by_section(moved),
    )


def _verdicts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(document["verdict"], str(document.get("summary", "")).partition(": ")[2]) for document in (then, now)]


def _grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return _by_section([_cells(row) for row in rows])


def _by_section(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, which come in the order of their sections, under the sections' titles."""
    return [
        {"title": _SECTIONS.get(name, name.capitalize()), "rows": list(listed)}
        for name, listed in groupby(rows, key=lambda row: row["section"])
    ]


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its values as people read them; exactly where rounding would make different ones look alike."""
    values = row["values"]
    cells = [_cell(value, row["unit"]) for value in values]
    if len({str(value) for value in values}) > 1 and len(set(cells)) == 1:
        cells = [_exact(value, row["unit"]) for value in values]
    numeric = all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values)
    return row | {"label": _label(row), "cells": cells, "numeric": numeric}


def _label(row: Mapping[str, Any]) -> str:
    key = str(row["key"])
    return key.removesuffix(_SUFFIXES[row["unit"]]).replace("_", " ") if row["unit"] in _SUFFIXES else key.replace("_", " ")


def _cell(value: Any, unit: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item, unit) for item in value)
    if not isinstance(value, (int, float)):
        return str(value)
    written = {"bytes": format_gib, "s": seconds, "frac": percent}
    if unit in written:
        return written[unit](value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)


def _exact(value: Any, unit: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _cell(value, unit)
    return f"{value:,} {unit}".strip() if unit != "frac" else f"{100 * value:,} %"
