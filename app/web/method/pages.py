"""Routes of the method pages: HTML for a browser, the same as JSON for everything else."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.domain.errors import NotFoundError
from app.web.api import json_response
from app.web.measurement_views import local_view
from app.web.method.accuracy_views import accuracy_view
from app.web.method.contents import contents_view
from app.web.method.reading_views import claims_view, glossary_view, names_view, sources_view
from app.web.method.rooms import ROOMS, room_view
from app.web.method.strategy_views import strategies_view, strategy_view
from app.web.problems import prefers_html
from app.web.rendering import page

router = APIRouter(prefix="/method", include_in_schema=False)
READING = {
    "deepspeed-fsdp": names_view,
    "wrong-claims": claims_view,
    "glossary": glossary_view,
    "sources": sources_view,
    "strategies": strategies_view,
}
"""Pages that need nothing but their name."""


@router.get("")
def get_method(request: Request) -> Response:
    """What the model computes, with the table of contents."""
    return _answer(request, "contents", contents_view())


@router.get("/accuracy")
def get_accuracy(request: Request, source: Annotated[str, Query(max_length=100)] = "") -> Response:
    """Predicted against measured; with ``source`` the runs of one. Runs measured on this service come last."""
    local = local_view(request.app.state.measurements.calibrator.runs())
    return _answer(request, "accuracy", accuracy_view(source) | {"local": local})


@router.get("/strategies/{slug}")
def get_strategy(request: Request, slug: str, at: Annotated[str, Query(max_length=100)] = "") -> Response:
    """The life of a parameter under one strategy, opened at a moment."""
    return _answer(request, "strategy", strategy_view(slug, at))


@router.get("/{name}")
def get_page(request: Request, name: str) -> Response:
    """A page of cards, or one of reading."""
    if name in ROOMS:
        return _answer(request, "room", room_view(name))
    if name not in READING:
        raise NotFoundError(f"there is no method page {name[:80]!r}; /method lists them")
    return _answer(request, name.replace("-", "_"), READING[name]())


def _answer(request: Request, template: str, view: dict[str, Any]) -> Response:
    if "application/json" in request.headers.get("accept", "") and not prefers_html(request):
        return json_response(view, headers={"vary": "Accept"})
    return page(request, f"method/{template}.html", view=view)
