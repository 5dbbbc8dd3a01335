"""Saved plans: each address answers a browser with a page and everything else with JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.services.saved_plans import ForbiddenError, PlanPage
from app.store.repository import PlanFilter
from app.web.api import json_response, saved_document
from app.web.deps import SavedPlansDep
from app.web.forms import to_fields
from app.web.measurement_pages import form, kept_runs
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.schemas import MAX_PAGE, PAGE, PlanListOut, SavedPlanOut, problems
from app.web.views import VERDICTS, answer_view

router = APIRouter(tags=["saved plans"])
VARY = {"vary": "Accept"}
NOTE_SHOWN = 120
"""Characters of a note that the list shows."""


class ListQuery(BaseModel):
    """Which saved plans to list."""

    model_config = ConfigDict(extra="forbid")

    q: str | None = Field(None, max_length=200, description="Words looked for in name, model and GPUs alike.")
    name: str | None = Field(None, max_length=200, description="Words of the name.")
    model: str | None = Field(None, max_length=200, description="Words of the model's name.")
    gpu: str | None = Field(None, max_length=200, description="Words of the GPUs' keys.")
    cursor: str | None = Field(None, max_length=500, description="next_cursor of the page before.")
    lang: str = Field("", max_length=20, description="Language of the page, en or zh; JSON is in English.")
    limit: int = Field(20, ge=1, json_schema_extra={"maximum": MAX_PAGE})
    """Its most is checked by ``SavedPlans``, which knows the setting; app/web/openapi.py writes it into the document."""


@router.get(
    "/plans",
    responses={200: {"model": PlanListOut, "content": PAGE}, **problems(422, 429, 503)},
    summary="List saved plans",
    response_model=None,
)
def get_plans(request: Request, saved: SavedPlansDep, query: Annotated[ListQuery, Query()]) -> Response:
    """Newest first, in pages; ``next`` is the address of the following page. A browser gets them as a page."""
    if not request.app.state.list_plans:
        raise ForbiddenError("saved plans are not listed on this service; open a plan by its own address")
    wanted = PlanFilter(text=query.q, name=query.name, model=query.model, gpu=query.gpu)
    limit = query.limit if "limit" in query.model_fields_set else min(query.limit, saved.page_size_max)
    found = saved.list(wanted, cursor=query.cursor or None, limit=limit)
    document = page_document(found, request)
    if not prefers_html(request):
        return json_response(document, headers=VARY)
    after = request.url.include_query_params(cursor=found.next_cursor).query if found.next_cursor else ""
    rows = [
        item | {"word": VERDICTS[item["verdict"]], "created": day(item["created_at"]), "note": " ".join(kept.note.split())[:NOTE_SHOWN]}
        for item, kept in zip(document["items"], found.items, strict=True)
    ]
    return page(request, "plans.html", rows=rows, next_href=f"/plans?{after}" if after else "", query=query, first=query.cursor is None)


@router.get(
    "/plans/{plan_id}",
    responses={200: {"model": SavedPlanOut, "content": PAGE}, **problems(404, 422, 429, 503)},
    summary="Read a saved plan",
    response_model=None,
)
def get_plan(request: Request, plan_id: str, saved: SavedPlansDep) -> Response:
    """The answer as it was when it was saved. A browser gets it as a page."""
    document = saved_document(saved.get(plan_id))
    return saved_page(document, request) if prefers_html(request) else json_response(document, headers=VARY)


def saved_page(document: dict[str, Any], request: Request, *, status: int = 200) -> Response:
    """A saved plan as a page; with the token that deletes it where the document still has it."""
    values = to_fields(document["request"])
    about = {key: document[key] for key in ("id", "name", "note")} | {"created": day(document["created_at"])}
    return page(
        request,
        "plan.html",
        status=status,
        view=answer_view(document),
        about=about,
        token=document.get("edit_token", ""),
        values=values,
        runs=kept_runs(request, document["id"]),
        measure=form(),
        origin=str(request.base_url).rstrip("/"),
    )


def page_document(found: PlanPage, request: Request) -> dict[str, Any]:
    """One page of the list."""
    after = str(request.url.include_query_params(cursor=found.next_cursor)) if found.next_cursor else None
    fields = ("id", "name", "created_at", "engine_version", "model_name", "gpu_name", "verdict")
    items = [{f: getattr(item, f) for f in fields} | {"links": {"self": f"/plans/{item.id}"}} for item in found.items]
    return {"items": items, "next_cursor": found.next_cursor, "next": after}


def day(moment: datetime | str) -> str:
    """A time as people write it: ``2026-11-29 17:37 UTC``."""
    parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return f"{parsed:%Y-%m-%d %H:%M} UTC"
