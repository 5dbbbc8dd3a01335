"""A saved plan as a report to be printed: everything in tables, each figure with its formula and its numbered source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from app.domain.units import format_gib
from app.web.api import json_response, saved_document
from app.web.cards import EXACTNESS, source_of
from app.web.charts import CATEGORIES, seconds
from app.web.deps import SavedPlansDep
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.saved_pages import VARY, day
from app.web.schemas import PAGE, SavedPlanOut, problems
from app.web.views import answer_view

router = APIRouter(tags=["saved plans"])
Document = Mapping[str, Any]


@router.get(
    "/plans/{plan_id}/report",
    responses={200: {"model": SavedPlanOut, "content": PAGE}, **problems(404, 422, 429, 503)},
    summary="A saved plan as a report to print",
    response_model=None,
)
def get_report(request: Request, plan_id: str, saved: SavedPlansDep) -> Response:
    """A browser gets the report, which prints on A4 and Letter; everything else the plan itself."""
    document = saved_document(saved.get(plan_id))
    if not prefers_html(request):
        return json_response(document, headers=VARY)
    about = {key: document[key] for key in ("id", "name", "note")} | {"created": day(document["created_at"])}
    about["address"] = f"{str(request.base_url).rstrip('/')}/plans/{document['id']}"
    return page(request, "report.html", about=about, view=answer_view(document), report=report_view(document))


def report_view(document: Document) -> dict[str, Any]:
    """Tables of the report, and the sources that their rows number."""
    best = document["recommended"]
    memory, sources = best["memory"], _Sources()
    tables = [_memory("GPU memory at the peak", memory["gpu"], memory["gpu"]["device_bytes"], sources)]
    for title, key in (("Host memory of one node", "host_per_node"), ("Disks of one node", "nvme_per_node")):
        if memory[key]["terms"]:
            tables.append(_memory(title, memory[key], memory[key]["peak_bytes"], sources))
    time = [
        _row(term, seconds(term["seconds"]), f"{term['seconds']:.6g} s", sources)
        for term in sorted(best["time"].get("terms", []), key=lambda term: -float(term["seconds"]))
    ]
    return {
        "memory": tables,
        "moments": [(m["name"], format_gib(m["allocated_bytes"])) for m in memory["gpu"].get("moments", [])],
        "time": {"rows": time, "total": seconds(best["time"]["step_s"])},
        "traffic": {
            "rows": [_flow(term, sources) for term in best["communication"]["terms"]],
            "total": format_gib(best["communication"]["bytes_per_step"]),
        },
        "files": list(document["files"].items()),
        "sources": sources.listed(),
    }


class _Sources:
    """Sources in the order they are first named, which is their number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, source: str) -> int:
        """The number of a source, from 1."""
        return self._numbers.setdefault(source, len(self._numbers) + 1)

    def listed(self) -> list[dict[str, str]]:
        """Title and address of each."""
        return [source_of(source) for source in self._numbers]


def _memory(title: str, place: Document, total: float, sources: _Sources) -> dict[str, Any]:
    order = {category: n for n, category in enumerate(CATEGORIES)}
    terms = sorted(place["terms"], key=lambda term: (order.get(term["category"], len(order)), -term["bytes"]))
    capacity = place["capacity_bytes"]
    return {
        "title": title,
        "rows": [_row(term, format_gib(term["bytes"]), f"{term['bytes']:,} bytes", sources) for term in terms],
        "total": format_gib(total),
        "capacity": format_gib(capacity) if capacity else "not known",
    }


def _row(term: Document, value: str, exact: str, sources: _Sources) -> dict[str, Any]:
    return {
        "name": term["name"],
        "moment": term["moment"],
        "value": ("≈ " if term["exactness"] == "fitted" else "") + value,
        "formula": f"{term['formula']} = {exact}",
        "exactness": EXACTNESS[term["exactness"]],
        "source": sources.number(term["source"]),
    }


def _flow(term: Document, sources: _Sources) -> dict[str, Any]:
    where = "between nodes" if term["spans_nodes"] else "in the node"
    return {
        "name": term["name"],
        "group": f"{term['group_size']} GPUs, {where}",
        "bytes": format_gib(term["bytes_per_step"]),
        "seconds": seconds(term["seconds"]),
        "exposed": seconds(term["exposed_s"]),
        "formula": f"{term['formula']} = {term['bytes_per_step']:,} bytes",
        "source": sources.number(term["source"]),
    }
