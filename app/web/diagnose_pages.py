"""Why a run failed or was slow: JSON, or the same question as a form with its answer on the page."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from app.domain.errors import InvalidRequestError
from app.ingest.hub import Hub
from app.services.diagnose.answer import diagnose
from app.services.diagnose.asked import DiagnoseIn
from app.services.diagnose.result import Diagnosis
from app.web.api import json_response
from app.web.deps import HubDep, Posted, json_only
from app.web.diagnose_form import DiagnoseForm, diagnose_form_view, read_diagnose_form
from app.web.diagnose_view import diagnosis_view
from app.web.diagnosing import EXAMPLES, DiagnosisOut
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.schemas import PAGE, problems

_VARY = {"vary": "Accept"}
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class FormRoute(APIRoute):
    """A route that posted forms take; everything else at its address goes to the next one."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As the path says, where the body is a form."""
        given = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        return super().matches(scope) if given in _FORMS else (Match.NONE, {})


forms = APIRouter(route_class=FormRoute, include_in_schema=False)
router = APIRouter()


@router.get("/diagnose", include_in_schema=False)
def get_diagnose(request: Request, hub: HubDep) -> Response:
    """The form; with fields in the address the answer to them."""
    pairs = request.query_params.multi_items()
    if not pairs and prefers_html(request):
        return _page(request, DiagnoseForm(own={}, values={}), None)
    return _answered(request, read_diagnose_form(pairs), hub)


@forms.post("/diagnose")
def post_diagnose_form(request: Request, pairs: Posted, hub: HubDep) -> Response:
    """The answer to a posted form, under the form as it was filled in."""
    return _answered(request, read_diagnose_form(pairs), hub)


@router.post(
    "/diagnose",
    tags=["diagnose"],
    summary="Say why a run failed or was slow, and what helps",
    responses={200: {"model": DiagnosisOut, "content": PAGE}, **problems(400, 413, 415, 422, 429, 503)},
    response_model=None,
    dependencies=[Depends(json_only)],
)
def post_diagnose(request: Request, body: Annotated[DiagnoseIn, Body(openapi_examples=EXAMPLES)], hub: HubDep) -> Response:
    """Read a log, or a measured peak or step time: the tensor with its arithmetic, the moment, remedies computed, cheapest first.

    Computes only: nothing is stored, the text least of all. A browser gets a page.
    """
    found = diagnose(body, hub)
    if prefers_html(request):
        return _page(request, DiagnoseForm(own={"log": body.text}, values={}), found)
    return json_response(found.document(), headers=_VARY)


def _answered(request: Request, form: DiagnoseForm, hub: Hub | None) -> Response:
    found: Diagnosis | None = None
    if form.question is not None:
        try:
            found = diagnose(form.question, hub)
        except InvalidRequestError as error:
            form = form.refused(error)
    if not prefers_html(request):
        if found is None:
            raise form.complaint()
        return json_response(found.document(), headers=_VARY)
    return _page(request, form, found)


def _page(request: Request, form: DiagnoseForm, found: Diagnosis | None) -> Response:
    shown: Any = diagnose_form_view(form, fetches=request.app.state.hub is not None)
    view = diagnosis_view(found) if found else None
    return page(request, "diagnose.html", status=422 if form.errors else 200, form=shown, errors=form.errors, view=view)
