"""Many planning requests as one job: made, watched, read while it runs, cancelled, deleted. JSON only."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from app.domain.errors import FieldError, InvalidRequestError
from app.services.request import PlanRequest
from app.services.saved_plans import key_of_client
from app.services.sweeps.kept import KeptSweep, ResultFormat
from app.services.sweeps.reading import Detail, GridIn, SweepIn, SweepLimits, WantedSweep, WrongRequestsError, read_document, read_lines
from app.web.api import json_response
from app.web.bodies import JSON_LINES
from app.web.deps import JSON_TYPE, ClientIdDep, SweepsDep
from app.web.problems import JSON, MediaTypeError
from app.web.schemas import EXAMPLE_REQUEST, Responses, SweepOut, problems
from app.web.validation import field_errors
from app.web.wrong_requests import invalid, wrong_requests

router = APIRouter(tags=["sweeps"])

LINES = "application/jsonl"
_MEDIA: dict[ResultFormat, str] = {"jsonl": LINES, "csv": "text/csv"}
_EXAMPLE = {"grid": {"base": EXAMPLE_REQUEST, "axes": {"training.seq_len": [4096, 8192], "cluster.pools.0.nodes": [1, 2, 4]}}}
_MADE: Responses = {
    200: {"model": SweepOut, "description": "Made earlier under this Idempotency-Key"},
    202: {"model": SweepOut, "headers": {"Location": {"description": "Address of the sweep", "schema": {"type": "string"}}}},
}
_ROWS: Responses = {200: {"description": "A line a row", "content": {media: {"schema": {"type": "string"}} for media in _MEDIA.values()}}}


_SCHEMAS = "#/components/schemas/"
_LINES_BODY = {"schema": {"type": "string", "description": "A PlanRequest a line."}}
_JSON_BODY = {"schema": {"$ref": f"{_SCHEMAS}{SweepIn.__name__}"}, "examples": {"a grid": {"value": _EXAMPLE}}}
_BODY = {"required": True, "content": {JSON: _JSON_BODY, LINES: _LINES_BODY}}


def body_schemas() -> dict[str, Any]:
    """Components of the OpenAPI document that only the body of ``POST /sweeps`` has.

    FastAPI does not know of them: it does not read that body, since checking many requests takes a thread.
    """
    schema = SweepIn.model_json_schema(ref_template=f"{_SCHEMAS}{{model}}")
    parts: dict[str, Any] = schema.pop("$defs")
    requests = {"type": "array", "minItems": 1, "items": {"$ref": f"{_SCHEMAS}{PlanRequest.__name__}"}}
    properties = schema["properties"] | {"requests": requests, "grid": {"$ref": f"{_SCHEMAS}{GridIn.__name__}"}}
    one_kind = [{"required": ["requests"]}, {"required": ["grid"]}]
    return parts | {SweepIn.__name__: schema | {"properties": properties, "oneOf": one_kind}}


async def _own_key(client: ClientIdDep, idempotency_key: Annotated[str | None, Header(max_length=200)] = None) -> str | None:
    """The ``Idempotency-Key``, of each client its own."""
    return key_of_client(client, idempotency_key)


async def _body(request: Request) -> bytes:
    return await request.body()


@router.post(
    "/sweeps", status_code=202, summary="Plan many requests as one job", responses={**_MADE, **problems(400, 409, 413, 415, 422, 429, 503)},
    openapi_extra={"requestBody": _BODY},
)  # fmt: skip
def post_sweeps(
    request: Request,
    body: Annotated[bytes, Depends(_body)],
    sweeps: SweepsDep,
    own_key: Annotated[str | None, Depends(_own_key)],
    name: Annotated[str, Query(max_length=200, description="Where the body has none, as JSON Lines.")] = "",
    detail: Annotated[Detail, Query(description="The same.")] = "figures",
) -> Response:
    """Check every request, keep them, and begin. ``edit_token`` is given once: it is needed to cancel and to delete."""
    sweeps.check_room()
    media_type = request.headers.get("content-type", "")
    with sweeps.reading:
        wanted = read_sweep(body, media_type, sweeps.options.limits, name=name, detail=detail)
        made = sweeps.create(wanted, idempotency_key=own_key)
    return json_response(sweep_document(made), 200 if made.replayed else 202, {"location": f"/sweeps/{made.sweep.id}"})


@router.get("/sweeps/{sweep_id}", summary="How far a sweep is", responses={200: {"model": SweepOut}, **problems(404, 422, 429, 503)})
def get_sweep(sweep_id: str, sweeps: SweepsDep) -> Response:
    """What it is, and how many rows there are."""
    return json_response(sweep_document(sweeps.get(sweep_id)))


@router.get(
    "/sweeps/{sweep_id}/results",
    summary="Rows of a sweep",
    response_class=StreamingResponse,
    responses={**_ROWS, **problems(404, 422, 429, 503)},
)
def get_sweep_results(sweep_id: str, sweeps: SweepsDep, kind: Annotated[ResultFormat, Query(alias="format")] = "jsonl") -> Response:
    """What is done so far, in the order of the requests."""
    named = {"content-disposition": f'attachment; filename="sweep-{sweep_id}.{kind}"'}
    return StreamingResponse(sweeps.results(sweep_id, kind), media_type=_MEDIA[kind], headers=named)


@router.post(
    "/sweeps/{sweep_id}/cancel",
    summary="Do no more of a sweep",
    responses={200: {"model": SweepOut}, **problems(403, 404, 422, 429, 503)},
)
def cancel_sweep(sweep_id: str, sweeps: SweepsDep, edit_token: Annotated[str, Header(max_length=200)]) -> Response:
    """What is done stays; a sweep that is finished stays as it is."""
    return json_response(sweep_document(sweeps.cancel(sweep_id, edit_token)))


@router.delete("/sweeps/{sweep_id}", status_code=204, summary="Delete a sweep", responses=problems(403, 404, 422, 429, 503))
def delete_sweep(sweep_id: str, sweeps: SweepsDep, edit_token: Annotated[str, Header(max_length=200)]) -> Response:
    """Delete it with its results; where it runs, it stops."""
    sweeps.delete(sweep_id, edit_token)
    return Response(status_code=204)


def sweep_document(kept: KeptSweep) -> dict[str, Any]:
    """A sweep in the contract's shape."""
    sweep, path = kept.sweep, f"/sweeps/{kept.sweep.id}"
    results = f"{path}/results"
    document = {
        "id": sweep.id, "name": sweep.name, "created_at": sweep.created_at.isoformat(), "state": sweep.state, "detail": sweep.detail,
        "axes": sweep.axes, "total": sweep.total, "done": sweep.done, "failed": sweep.counts["failed"],
        "verdicts": {verdict: sweep.counts[verdict] for verdict in ("fits", "tight", "does_not_fit")},
        "engine_versions": sweep.engine_versions,
        "expires_at": kept.expires_at.isoformat() if kept.expires_at else None,
        "links": {"self": path, "results": results, "results_csv": f"{results}?format=csv", "cancel": f"{path}/cancel"},
    }  # fmt: skip
    return document | ({"edit_token": kept.edit_token} if kept.edit_token else {})


def read_sweep(body: bytes, media_type: str, limits: SweepLimits, *, name: str = "", detail: Detail = "figures") -> WantedSweep:
    """Read a body by its media type.

    Raises:
        MediaTypeError: it is neither JSON nor JSON Lines.
        InvalidRequestError: it is no sweep, or of requests that are not valid.
    """
    given = media_type.partition(";")[0].strip()
    try:
        if JSON_LINES.fullmatch(given):
            return read_lines(body, limits, name=name, detail=detail)
        if JSON_TYPE.fullmatch(given):
            document = orjson.loads(body)
            return read_document({"name": name, "detail": detail} | document if isinstance(document, dict) else document, limits)
    except ValidationError as error:
        raise invalid(field_errors(error.errors(), SweepIn)) from error
    except WrongRequestsError as error:
        raise wrong_requests(error) from error
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError("the body is empty; give requests or grid") from error
    msg, hint = f"Content-Type is {given[:80]!r}; this address reads JSON and JSON Lines", f"send Content-Type: {JSON} or {LINES}"
    raise MediaTypeError(f"{msg}; {hint}", (FieldError(("Content-Type",), msg, hint),))
