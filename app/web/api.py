"""JSON endpoints: thin doors to the use cases."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Depends, Header, Query, Response

from app.domain.plan import Artifact
from app.services.plan import PlanLabel, answer, file_of
from app.services.request import PlanRequest
from app.services.saved_plans import SavedPlan, key_of_client, new_plan_id
from app.web.deps import ClientIdDep, HubDep, MeasurementsDep, MetricsDep, SavedPlansDep, json_only
from app.web.schemas import EXAMPLE_REQUEST, DialectName, FileName, PlanOut, Responses, SavedPlanOut, SaveRequest, files, problems

router = APIRouter(dependencies=[Depends(json_only)])

Dialect = Annotated[
    DialectName,
    Query(description="hf_auto writes ds_config.json for the Hugging Face Trainer, with the values that training_args.py fills in."),
]
Calibrate = Annotated[bool, Query(description="false leaves out what runs measured here say.")]
_EXAMPLES: Any = {"llama-3.1-8b on 8 H100": {"value": EXAMPLE_REQUEST}}
_SAVED: Responses = {
    200: {"model": SavedPlanOut, "description": "Saved earlier under this Idempotency-Key; the plan as it was"},
    201: {"model": SavedPlanOut, "headers": {"Location": {"description": "Address of the plan", "schema": {"type": "string"}}}},
}
_FILE = files("application/json", "application/yaml", "text/x-python", "text/x-shellscript")
PlanBody = Annotated[PlanRequest, Body(openapi_examples=_EXAMPLES)]


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer, written by orjson."""
    return Response(orjson.dumps(document, default=str), status_code=status, media_type="application/json", headers=headers)


def file_response(artifact: Artifact) -> Response:
    """A generated file as a download."""
    headers = {"content-disposition": f'attachment; filename="{artifact.filename}"'}
    return Response(artifact.text, media_type=artifact.media_type, headers=headers)


@router.post(
    "/plan",
    tags=["plan"],
    responses={200: {"model": PlanOut}, **problems(400, 413, 415, 422, 429, 503)},
    summary="Plan one training run",
)
def post_plan(body: PlanBody, hub: HubDep, kept: MeasurementsDep, calibrate: Calibrate = True) -> Response:
    """Answer one request. Computes only: nothing is stored. What runs measured here say is in ``calibration`` alone."""
    document = answer(body, hub).document()
    return json_response(document | {"calibration": kept.calibrator.of(document, wanted=calibrate)})


@router.post(
    "/plan/{file}",
    tags=["plan"],
    response_class=Response,
    responses={**_FILE, **problems(400, 409, 413, 415, 422, 429, 503)},
    summary="One file of the recommended plan",
)
def post_plan_file(file: FileName, body: PlanBody, hub: HubDep, dialect: Dialect = "plain") -> Response:
    """Answer with that one file, in the dialect asked for."""
    return file_response(file_of(body, file, dialect=dialect, hub=hub))


@router.post(
    "/plans",
    tags=["saved plans"],
    status_code=201,
    responses={**_SAVED, **problems(400, 409, 413, 415, 422, 429, 503)},
    summary="Plan and save",
)
def post_plans(
    body: Annotated[SaveRequest, Body(openapi_examples=_EXAMPLES)],
    saved: SavedPlansDep,
    hub: HubDep,
    client: ClientIdDep,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Plan, and keep request and answer. ``edit_token`` is given once: it is needed to delete the plan."""
    request = PlanRequest.model_validate(body.model_dump(exclude={"name", "note"}, exclude_unset=True))
    document = body.model_dump(mode="json", exclude={"name", "note"}, exclude_unset=True)
    own: Any = {"name": body.name, "note": body.note, "idempotency_key": key_of_client(client, idempotency_key)}
    kept = saved.earlier(document, **own)
    if kept is None:
        label = PlanLabel(id=new_plan_id(), name=body.name.strip())
        kept = saved.save(document, answer(request, hub, label).document(), **own, plan_id=label.id)
    return json_response(saved_document(kept), 200 if kept.replayed else 201, {"location": f"/plans/{kept.id}"})


@router.delete(
    "/plans/{plan_id}", tags=["saved plans"], status_code=204, responses=problems(403, 404, 422, 429, 503), summary="Delete a saved plan"
)
def delete_plan(plan_id: str, saved: SavedPlansDep, edit_token: Annotated[str, Header(max_length=200)]) -> Response:
    """Delete a plan; the ``Edit-Token`` header is the secret its save answered with."""
    saved.delete(plan_id, edit_token)
    return Response(status_code=204)


@router.get(
    "/plans/{plan_id}/{file}",
    tags=["saved plans"],
    response_class=Response,
    responses={**_FILE, **problems(404, 422, 429, 503)},
    summary="Download a file of a saved plan",
)
def get_plan_file(plan_id: str, file: str, saved: SavedPlansDep, dialect: Dialect = "plain") -> Response:
    """A generated file, as it was when the plan was saved."""
    return file_response(saved.file(plan_id, file, dialect=dialect))


@router.get(
    "/metrics",
    tags=["operations"],
    response_class=Response,
    responses=files("text/plain"),
    summary="Counters of this process, in Prometheus' text format",
)
def get_metrics(metrics: MetricsDep) -> Response:
    """Requests by route and status, with their seconds."""
    return Response(metrics.render(), media_type="text/plain; version=0.0.4")


def saved_document(kept: SavedPlan) -> dict[str, Any]:
    """A saved plan in the contract's shape: the answer as it was, with its id and links."""
    path = f"/plans/{kept.id}"
    links = {"self": path} | {name: f"{path}/{name}" for name in kept.answer.get("files", {})}
    dialects = kept.answer.get("dialects", {})
    document = dict(kept.answer) | {
        "id": kept.id,
        "name": kept.name,
        "note": kept.note,
        "created_at": kept.created_at.isoformat(),
        "links": links,
        "dialect_links": {key: {name: f"{path}/{name}?dialect={key}" for name in texts} for key, texts in dialects.items()},
    }
    return document | ({"edit_token": kept.edit_token} if kept.edit_token else {})
