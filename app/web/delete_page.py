"""Deleting a saved plan from a page: what will be gone, the token that allows it, and what happened."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.services.saved_plans import ForbiddenError, SavedPlan
from app.web.api import json_response, saved_document
from app.web.deps import Posted, SavedPlansDep
from app.web.origins import refuse_cross_site
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.saved_pages import VARY, day
from app.web.views import VERDICTS

router = APIRouter()


@router.get("/plans/{plan_id}/delete", include_in_schema=False)
def get_delete(request: Request, plan_id: str, saved: SavedPlansDep) -> Response:
    """Ask before deleting; its JSON twin is the plan that would be gone."""
    kept = saved.get(plan_id)
    if not prefers_html(request):
        return json_response(saved_document(kept), headers=VARY)
    return _page(request, kept)


@router.post("/plans/{plan_id}/delete", include_in_schema=False)
def post_delete(request: Request, plan_id: str, pairs: Posted, saved: SavedPlansDep) -> Response:
    """Delete it, where the token is the plan's; otherwise the question again, with what was typed."""
    refuse_cross_site(request)
    kept = saved.get(plan_id)
    token = next((text.strip() for name, text in pairs if name == "token"), "")
    try:
        saved.delete(plan_id, token)
    except ForbiddenError as error:
        wrong = error.detail if token else "the edit token is missing; it was given once, when the plan was saved"
        return _page(request, kept, status=403, typed=token, wrong=wrong)
    return _page(request, kept, deleted=True)


def _page(request: Request, kept: SavedPlan, *, status: int = 200, **more: Any) -> Response:
    about = {key: getattr(kept, key) for key in ("id", "name", "note", "model_name", "gpu_name", "verdict")}
    about |= {"word": VERDICTS[kept.verdict], "created": day(kept.created_at), "files": list(kept.answer.get("files", {}))}
    context = {"typed": "", "wrong": "", "deleted": False} | more
    response = page(request, "delete.html", status=status, about=about, **context)
    response.headers["cache-control"] = "no-store"
    return response
