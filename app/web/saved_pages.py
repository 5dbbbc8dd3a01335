"""Saved plans: each address answers a browser with a page and everything else with JSON."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.store.repository import PlanFilter
from app.web.api import json_response, page_document, saved_document
from app.web.deps import SavedPlansDep
from app.web.forms import to_fields
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.schemas import PlanOut, problems
from app.web.views import VERDICTS, answer_view

router = APIRouter(tags=["saved plans"])
Word = Annotated[str | None, Query(max_length=200)]
_VARY = {"vary": "Accept"}


@router.get("/plans", responses=problems(422, 503), summary="List saved plans", response_model=None)
def get_plans(
    request: Request,
    saved: SavedPlansDep,
    wanted: Annotated[PlanFilter, Query()],
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """Newest first, in pages; ``next`` is the address of the following page."""
    return json_response({})
