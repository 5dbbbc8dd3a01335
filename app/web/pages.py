"""Pages for people: the form with its answer, files of an answer, and problems; the other pages hang on this router."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from app.domain.errors import InvalidRequestError
from app.ingest.hub import Hub
from app.services.plan import Answer, PlanLabel, answer, file_of
from app.services.saved_plans import key_of_client, new_plan_id
from app.web import (
    catalog_pages,
    chart_pages,
    delete_page,
    diagnose_pages,
    diff_page,
    docs_page,
    language_page,
    preview,
    report_page,
    saved_pages,
    what_if_page,
)
from app.web.api import Dialect, file_response, json_response, saved_document
from app.web.deps import ClientIdDep, HubDep, Posted, SavedPlansDep
from app.web.form_view import form_view, typed_notes
from app.web.forms import Form, read_form, to_fields
from app.web.languages import PARAMETER
from app.web.measurement_views import calibration_view
from app.web.method import pages as method_pages
from app.web.origins import refuse_cross_site
from app.web.posted import of_plan
from app.web.problems import Problem, prefers_html
from app.web.rendering import page
from app.web.schemas import EXAMPLE_REQUEST, FileName
from app.web.views import answer_view

router = APIRouter()
router.include_router(preview.router)
router.include_router(language_page.router)
router.include_router(diff_page.router)
router.include_router(diagnose_pages.forms)  # before the JSON of the same address, which takes whatever is no form
router.include_router(diagnose_pages.router)
router.include_router(report_page.router)
router.include_router(delete_page.router)
router.include_router(saved_pages.router)
router.include_router(catalog_pages.router)
router.include_router(docs_page.router)
router.include_router(method_pages.router)
router.include_router(chart_pages.router)
router.include_router(what_if_page.router)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A form with its answer; without one where the form has errors."""

    form: Form
    answer: Answer | None


@router.get("/", include_in_schema=False)
def get_home(request: Request, hub: HubDep) -> Response:
    """The form; with a query the answer to it, without one the worked example."""
    given = [pair for pair in request.query_params.multi_items() if pair[0] != PARAMETER]
    pairs = given or list(to_fields(EXAMPLE_REQUEST).items())
    return _plan_page(request, _answered(read_form(pairs), hub), example=not given)


@router.post("/", include_in_schema=False)
def post_home(request: Request, pairs: Posted, hub: HubDep) -> Response:
    """The same from a form body, as a pasted config.json is too long for an address."""
    return _plan_page(request, _answered(read_form(of_plan(pairs)), hub))


@router.get("/download/{file}", include_in_schema=False)
def get_download(request: Request, file: FileName, hub: HubDep, dialect: Dialect = "plain") -> Response:
    """One file of the answer to a query."""
    pairs = [pair for pair in request.query_params.multi_items() if pair[0] != "dialect"]
    return _download(file, read_form(pairs), hub, dialect)


@router.post("/download/{file}", include_in_schema=False)
def post_download(file: FileName, pairs: Posted, hub: HubDep, dialect: Dialect = "plain") -> Response:
    """One file of the answer to a posted form."""
    return _download(file, read_form(of_plan(pairs)), hub, dialect)


@router.post("/save", include_in_schema=False)
def post_save(request: Request, pairs: Posted, saved: SavedPlansDep, hub: HubDep, client: ClientIdDep) -> Response:
    """Save the answer and show it, once with the token that deletes it."""
    refuse_cross_site(request)
    own = {name: text for name, text in pairs if name in ("name", "note", "key")}
    form = read_form(of_plan(pairs))
    if form.request is None:
        return _plan_page(request, Answered(form=form, answer=None))
    asked = form.request.model_dump(mode="json", exclude_unset=True)
    words: Any = {key: own.get(key, "") for key in ("name", "note")} | {"idempotency_key": key_of_client(client, own.get("key") or None)}
    kept = saved.earlier(asked, **words)
    if kept is None:
        label = PlanLabel(id=new_plan_id(), name=own.get("name", "").strip())
        answered = _answered(form, hub, label)
        if answered.answer is None:
            return _plan_page(request, answered)
        kept = saved.save(asked, answered.answer.document(), **words, plan_id=label.id)
    response = saved_pages.saved_page(saved_document(kept), request, status=200 if kept.replayed else 201)
    response.headers["location"] = f"/plans/{kept.id}"
    response.headers["cache-control"] = "no-store"
    return response


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A problem as a page, for a browser that went somewhere."""
    response = page(request, "problem.html", status=problem.status, problem=problem, document=problem.document())
    response.headers.update(problem.headers)
    return response


def _answered(form: Form, hub: Hub | None, label: PlanLabel | None = None) -> Answered:
    """The answer to a form, or the form with what is wrong with it."""
    if form.request is None:
        return Answered(form=form, answer=None)
    try:
        return Answered(form=form, answer=answer(form.request, hub, label or PlanLabel()))
    except InvalidRequestError as error:
        return Answered(form=form.refused(error), answer=None)


def _plan_page(request: Request, answered: Answered, *, example: bool = False) -> Response:
    accept = request.headers.get("accept", "")
    if "application/json" in accept and not prefers_html(request):
        return _json(request, answered)
    form = answered.form
    document = answered.answer.document() if answered.answer else None
    said = request.app.state.measurements.calibrator.of(document) if document else None
    values = to_fields(document["request"]) if document else dict(form.values)
    query = urlencode(values)
    return page(
        request,
        "index.html",
        status=422 if form.errors else 200,
        example=example,
        focused=not (example or form.errors or form.pools > 1 or form.companions),
        view=answer_view(document) if document else None,
        calibration=calibration_view(said, document) if document else None,
        form=form_view(values, form, typed_notes(document, form.values), fetches=request.app.state.hub is not None),
        values=values,
        errors=form.errors,
        posted="config" in values,
        share="" if "config" in values else f"/?{query}",
        query=query if "config" not in values else "",
        save_key=secrets.token_urlsafe(16),
    )


def _json(request: Request, answered: Answered) -> Response:
    if answered.answer is None:
        raise answered.form.complaint()
    document = answered.answer.document()
    said = request.app.state.measurements.calibrator.of(document)
    return json_response(document | {"calibration": said}, headers={"vary": "Accept"})


def _download(file: FileName, form: Form, hub: Hub | None, dialect: str) -> Response:
    if form.request is None:
        raise form.complaint()
    return file_response(file_of(form.request, file, dialect=dialect, hub=hub))
