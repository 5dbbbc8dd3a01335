"""What runs of saved plans really took: posted, listed, taken away. Their forms are in ``measurement_pages``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Request, Response

from app.services.measured import MeasurementIn
from app.services.saved_plans import key_of_client
from app.web.api import json_response
from app.web.deps import ClientIdDep, MeasurementsDep, json_only
from app.web.measured_schemas import MeasurementListOut, MeasurementOut
from app.web.measurement_pages import runs_page
from app.web.measurement_views import measurement_document
from app.web.problems import prefers_html
from app.web.schemas import PAGE, Responses, problems

router = APIRouter(tags=["saved plans"], dependencies=[Depends(json_only)])
EXAMPLE = {"peak_bytes": 63_350_767_616, "counter": "reserved", "step_s": 9.31, "versions": {"torch": "2.13.0"}}
_EXAMPLES: Any = {"a run": {"value": EXAMPLE}}
_MADE: Responses = {
    200: {"model": MeasurementOut, "description": "Kept earlier under this Idempotency-Key"},
    201: {"model": MeasurementOut, "description": "Kept"},
}


@router.post(
    "/plans/{plan_id}/measurements",
    status_code=201,
    responses={**_MADE, **problems(400, 404, 409, 413, 415, 422, 429, 503)},
    summary="Say what a run of a saved plan really took",
)
def post_measurement(
    plan_id: str,
    body: Annotated[MeasurementIn, Body(openapi_examples=_EXAMPLES)],
    kept: MeasurementsDep,
    client: ClientIdDep,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Keep it. The saved plan stays as it is; answers after this one show, beside their own figures, what such runs make of them."""
    added = kept.add(plan_id, body, client=client, idempotency_key=key_of_client(client, idempotency_key))
    return json_response(measurement_document(added.measured), 200 if added.replayed else 201)


@router.get(
    "/plans/{plan_id}/measurements",
    responses={200: {"model": MeasurementListOut, "content": PAGE}, **problems(404, 422, 429, 503)},
    summary="What runs of a saved plan really took",
    response_model=None,
)
def get_measurements(request: Request, plan_id: str, kept: MeasurementsDep) -> Response:
    """Each beside what the plan predicted, the newest first. A browser gets them as a page."""
    plan, found = kept.of_plan(plan_id)
    if prefers_html(request):
        return runs_page(request, plan, found)
    document = {"items": [measurement_document(run) for run in found], "calibration": kept.calibrator.of(plan.answer)}
    return json_response(document, headers={"vary": "Accept"})


@router.delete(
    "/plans/{plan_id}/measurements/{measurement_id}",
    status_code=204,
    responses=problems(403, 404, 422, 429, 503),
    summary="Take a measurement away",
)
def delete_measurement(
    plan_id: str, measurement_id: str, kept: MeasurementsDep, edit_token: Annotated[str, Header(max_length=200)]
) -> Response:
    """Take it away, from the calibration too; the ``Edit-Token`` header is the secret that the plan's save answered with."""
    kept.delete(plan_id, measurement_id, edit_token)
    return Response(status_code=204)
