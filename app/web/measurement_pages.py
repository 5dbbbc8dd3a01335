"""Forms for what a run really took: on the page of its plan, and on one of their own where something is wrong with what was typed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from app.domain.errors import FieldError, InvalidRequestError, ShardplanError, UnavailableError
from app.domain.units import parse_quantity
from app.services.measured import MeasurementIn
from app.services.saved_plans import ForbiddenError, key_of_client
from app.store.measurements import StoredMeasurement
from app.store.repository import StoredPlan
from app.web.deps import ClientIdDep, MeasurementsDep, Posted
from app.web.measurement_views import runs_view
from app.web.origins import refuse_cross_site
from app.web.rendering import page
from app.web.validation import field_errors

router = APIRouter(include_in_schema=False)
_LEAST_BYTES = 2**20
_FIELDS = ("peak", "counter", "step", "oom", "token")
_FIELD_OF = {"peak_bytes": "peak", "step_s": "step"} | {same: same for same in ("counter", "token")}


@router.post("/plans/{plan_id}/measure")
def post_measure(request: Request, plan_id: str, pairs: Posted, kept: MeasurementsDep, client: ClientIdDep) -> Response:
    """Keep what was typed, and show the plan again; or the form with what is wrong."""
    refuse_cross_site(request)
    typed = {name: text.strip() for name, text in pairs}
    try:
        given = read_measurement(typed)
        kept.add(plan_id, given, client=client, idempotency_key=key_of_client(client, typed.get("key") or None))
    except InvalidRequestError as error:
        plan, found = kept.of_plan(plan_id)
        return runs_page(request, plan, found, form(typed, error), status=422)
    return _shown_again(plan_id)


@router.post("/plans/{plan_id}/measure/remove")
def post_remove(request: Request, plan_id: str, pairs: Posted, kept: MeasurementsDep) -> Response:
    """Take one away, where the token is the plan's; otherwise the list again, with what was typed."""
    refuse_cross_site(request)
    typed = {name: text.strip() for name, text in pairs}
    try:
        kept.delete(plan_id, typed.get("run", ""), typed.get("token", ""))
    except ForbiddenError as error:
        plan, found = kept.of_plan(plan_id)
        wrong = error.detail if typed.get("token") else "the edit token is missing; it was given once, when the plan was saved"
        return runs_page(request, plan, found, form(typed, InvalidRequestError.at("token", msg=wrong)), status=403)
    return _shown_again(plan_id)


def read_measurement(typed: Mapping[str, str]) -> MeasurementIn:
    """What a form says, with units as people write them; raises ``InvalidRequestError`` that names the field."""
    document: dict[str, Any] = {"oom": typed.get("oom") == "yes"}
    if typed.get("peak"):
        counter, expandable, _ = typed.get("counter", "").partition("_expandable")
        document |= {"peak_bytes": _bytes(typed["peak"]), "counter": counter or None}
        document["expandable_segments"] = bool(expandable) if counter == "reserved" else None
    if typed.get("step"):
        document["step_s"] = _number("step_s", typed["step"].removesuffix("s"))
    try:
        return MeasurementIn.model_validate(document)
    except ValidationError as error:
        found = field_errors(error.errors(), MeasurementIn)
        raise InvalidRequestError(found[0].msg, found) from error


def form(typed: Mapping[str, str] | None = None, error: ShardplanError | None = None) -> dict[str, Any]:
    """What the form's template shows: values, complaints by field, and a key under which sending twice keeps one run."""
    wrong = dict.fromkeys(_FIELDS, "")
    for found in error.errors if error else ():
        name = _field(found)
        wrong[name] = wrong[name] or (f"{found.msg}; {found.hint}" if found.hint else found.msg)
    given = {name: (typed or {}).get(name, "") for name in _FIELDS}
    return {"typed": given, "wrong": wrong, "first": next(filter(None, wrong.values()), ""), "key": secrets.token_urlsafe(16)}


def kept_runs(request: Request, plan_id: str) -> list[dict[str, Any]] | None:
    """Rows of a plan's runs; None where the database has no such table yet, as before a migration."""
    try:
        return runs_view(request.app.state.measurements.of_plan(plan_id)[1])
    except UnavailableError:
        return None


def runs_page(
    request: Request, plan: StoredPlan, found: Sequence[StoredMeasurement], measure: dict[str, Any] | None = None, *, status: int = 200
) -> Response:
    """The runs of a plan, with the form for another."""
    about = {"id": plan.id, "name": plan.name}
    return page(request, "measurements.html", status=status, about=about, runs=runs_view(found), measure=measure or form())


def _shown_again(plan_id: str) -> Response:
    return Response(status_code=303, headers={"location": f"/plans/{plan_id}/measurements"})


def _bytes(text: str) -> int:
    value = _number("peak_bytes", text)
    if value < _LEAST_BYTES:
        raise InvalidRequestError.at("peak_bytes", msg=f"{text} is read as {value:,.0f} bytes", hint=f"add the unit, such as {text} GiB")
    return int(value)


def _number(field: str, text: str) -> float:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise InvalidRequestError.at(field, msg=str(error), hint="write 61.2 GiB for memory, or 9.3 for seconds") from error


def _field(error: FieldError) -> str:
    return _FIELD_OF.get(str(error.loc[0]) if error.loc else "", "peak")
