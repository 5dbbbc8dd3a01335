"""An existing configuration file against the plan's, as a page or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from app.domain.errors import InvalidRequestError
from app.services.config_diff import ConfigDiff, KeyDiff, config_diff, kind_of
from app.services.plan import answer
from app.services.request import PlanRequest
from app.web.api import json_response
from app.web.deps import HubDep, Posted, SavedPlansDep
from app.web.forms import read_form
from app.web.posted import of_plan
from app.web.problems import prefers_html
from app.web.rendering import page

router = APIRouter()
MAX_SHOWN = 200_000
"""Characters of a given file that the page hands back to be mended."""
_VARY = {"vary": "Accept"}


@router.post("/diff", include_in_schema=False)
def post_diff(request: Request, pairs: Posted, hub: HubDep) -> Response:
    """A given file against that of the answer to a posted form."""
    form = read_form(of_plan(pairs))
    if form.request is None:
        raise form.complaint()
    about = {"back": "", "values": dict(form.values), "action": "/diff", "instead": False}
    existing = _existing(pairs)
    files = answer(form.request, hub).files()
    if "ds_config.json" not in files and existing and _is_deepspeed(existing):
        about["instead"] = True
        files = answer(_on_deepspeed(form.request), hub).files()
    return _respond(request, existing, {name: artifact.text for name, artifact in files.items()}, about)


def _is_deepspeed(text: str) -> bool:
    try:
        return kind_of(text) == "ds_config.json"
    except InvalidRequestError:
        return False


def _on_deepspeed(request: PlanRequest) -> PlanRequest:
    """The same question, to be answered with DeepSpeed: whoever brings its file runs it."""
    return request.model_copy(update={"constraints": request.constraints.model_copy(update={"framework": "deepspeed"})})


@router.post("/plans/{plan_id}/diff", include_in_schema=False)
def post_saved_diff(request: Request, plan_id: str, pairs: Posted, saved: SavedPlansDep) -> Response:
    """A given file against that of a saved plan."""
    kept = saved.get(plan_id)
    about = {"back": f"/plans/{kept.id}", "values": {}, "action": f"/plans/{kept.id}/diff", "instead": False}
    return _respond(request, _existing(pairs), kept.answer.get("files", {}), about)


def _existing(pairs: list[tuple[str, str]]) -> str:
    return next((text for name, text in pairs if name == "existing"), "")


def _respond(request: Request, text: str, files: Mapping[str, str], about: Mapping[str, Any]) -> Response:
    error, found = None, None
    try:
        found = config_diff(text, files)
    except InvalidRequestError as refused:
        if not prefers_html(request):
            raise
        error = refused.errors[0]
    if not prefers_html(request):
        return json_response(_document(found), headers=_VARY)
    groups = _groups(found) if found else []
    return page(
        request, "diff.html", status=422 if error else 200, about=about, error=error, file=found.file if found else "",
        groups=groups, text=text[:MAX_SHOWN],
    )  # fmt: skip


def _groups(found: ConfigDiff) -> list[dict[str, Any]]:
    titles = {
        "differs": "Values that differ",
        "only yours": "Only in your file",
        "only the plan's": "Only in the plan's file",
        "same": "The same in both",
    }
    return [{"title": title, "same": kind == "same", "rows": found.of(kind)} for kind, title in titles.items()]  # type: ignore[arg-type]


def _document(found: ConfigDiff | None) -> dict[str, Any]:
    rows = found.rows if found else ()
    return {"file": found.file if found else "", "keys": [{name: getattr(row, name) for name in KeyDiff.__slots__} for row in rows]}
