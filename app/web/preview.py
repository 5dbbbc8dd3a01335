"""The verdict of a form that is still being filled in: one line, and what to say beside its fields."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.domain.errors import InvalidRequestError
from app.domain.plan import Plan
from app.domain.units import format_gib, format_number
from app.ingest.hub import Hub
from app.services.plan import judged
from app.web import languages
from app.web.api import json_response
from app.web.deps import HubDep, Posted
from app.web.form_view import clip_note, warned
from app.web.forms import Form, read_form
from app.web.posted import of_plan
from app.web.rendering import environment
from app.web.views import VERDICTS

router = APIRouter()


@router.get("/preview", include_in_schema=False)
def get_preview(request: Request, hub: HubDep) -> Response:
    """The verdict of a query: no files are written and no plan is counted."""
    return _answer(request, [pair for pair in request.query_params.multi_items() if pair[0] != languages.PARAMETER], hub)


@router.post("/preview", include_in_schema=False)
def post_preview(request: Request, pairs: Posted, hub: HubDep) -> Response:
    """The same from a form body, which may hold a config.json."""
    return _answer(request, of_plan(pairs), hub)


def _answer(request: Request, pairs: list[tuple[str, str]], hub: Hub | None) -> Response:
    """In the language of the page that asks."""
    with languages.speaking(languages.language_of(request)):
        found = _previewed(read_form(pairs), fetches=hub is not None)
        for texts in (*found["errors"].values(), *found["notes"].values()):
            texts[:] = map(languages.in_words, texts)
    return json_response(found, headers={"vary": languages.VARY})


def _previewed(form: Form, *, fetches: bool) -> dict[str, Any]:
    """Verdict, its line as HTML, and errors and notes by field; 200 also where the form has errors, which are the answer."""
    if form.request is None:
        return _wrong(form)
    if fetches and form.request.model.hf_id is not None:
        return {"verdict": None, "line": _line(fetched=form.request.model.hf_id), "errors": {}, "notes": {}}
    try:
        plan = judged(form.request)
    except InvalidRequestError as error:
        return _wrong(form.refused(error))
    said = ((w.field, f"{w.message} {w.fix}") for w in plan.warnings if w.severity != "info")
    notes = warned(said, form.values)
    if clip := form.request.training.tokens_from:
        notes["frames"] = [clip_note(clip.model_dump())]
    line = _line(verdict=plan.verdict, word=VERDICTS[plan.verdict], plan=_figures(plan))
    return {"verdict": plan.verdict, "line": line, "errors": {}, "notes": notes}


def _wrong(form: Form) -> dict[str, Any]:
    errors: dict[str, list[str]] = {}
    for error in form.errors:
        errors.setdefault(error.field, []).append(f"{error.msg}; {error.hint}" if error.hint else error.msg)
    return {"verdict": None, "line": _line(errors=errors), "errors": errors, "notes": {}}


def _figures(plan: Plan) -> dict[str, str]:
    """What decides: memory of a GPU against what it has, and the speed or the shortfall."""
    gpu = plan.recommended.gpu
    return {
        "used": format_gib(gpu.device_bytes).removesuffix(" GiB"),
        "capacity": format_gib(gpu.capacity_bytes),
        "speed": format_number(plan.recommended.time.tokens_per_s_per_gpu),
        "shortfall": format_gib(plan.shortfall_bytes) if plan.shortfall_bytes else "",
    }


def _line(**context: Any) -> str:
    """The line, from its template."""
    given = {"verdict": "", "word": "", "plan": {}, "errors": {}, "fetched": ""} | context
    return environment().get_template("partials/live.html").render(given=given).strip()
