"""Errors on the wire: ``application/problem+json`` (RFC 9457), or a page where a person asked for one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.domain.errors import (
    ConflictError,
    FieldError,
    InvalidRequestError,
    NotFoundError,
    ShardplanError,
    UnavailableError,
)
from app.observability import request_id_var
from app.services.key_check import UnauthorizedError
from app.services.saved_plans import ForbiddenError
from app.services.sweeps.kept import TooManySweepsError
from app.web.validation import field_errors

PROBLEM_JSON = "application/problem+json"
JSON = "application/json"
RETRY_AFTER_S, SWEEPS_RETRY_AFTER_S = 5, 30


class MediaTypeError(ShardplanError):
    """A body whose Content-Type says that it is not what the endpoint reads."""

    code = "unsupported_media_type"
    title = "The body is not of a type that is read here"


STATUS: dict[type[ShardplanError], int] = {
    InvalidRequestError: 422,
    NotFoundError: 404,
    ConflictError: 409,
    UnauthorizedError: 401,
    ForbiddenError: 403,
    MediaTypeError: 415,
    UnavailableError: 503,
    TooManySweepsError: 429,
    ShardplanError: 400,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What went wrong, ready to be shown.

    Attributes:
        status, code, title, detail: as in RFC 9457; the code is the last part of ``type``.
        errors: the fields at fault.
        headers: response headers the status asks for.
    """

    status: int
    code: str
    title: str
    detail: str
    errors: tuple[FieldError, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "type": f"urn:shardplan:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "errors": [{"loc": list(error.loc), "msg": error.msg, "hint": error.hint} for error in self.errors],
            "request_id": request_id_var.get(),
        }


Page = Callable[[Request, Problem], Response | None]


def install(app: FastAPI, page: Page | None = None) -> None:
    """Answer every error of the app as a problem.

    Args:
        app: the service.
        page: gives the HTML answer to a client that prefers HTML; None from it, or no page, means JSON.
    """
    app.state.problem_page = page
    app.add_exception_handler(ShardplanError, _on_shardplan_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_body)
    app.add_exception_handler(HTTPException, _on_http_error)


def respond(request: Request, problem: Problem) -> Response:
    """The answer to a request that met a problem."""
    page: Page | None = getattr(request.app.state, "problem_page", None) if "app" in request.scope else None
    response = page(request, problem) if page is not None and prefers_html(request) else None
    if response is None:
        body = orjson.dumps(problem.document(), default=str)
        response = Response(body, status_code=problem.status, media_type=PROBLEM_JSON)
    response.headers.update(problem.headers)
    response.headers.setdefault("vary", "Accept")
    return response


def prefers_html(request: Request) -> bool:
    """Whether the client names HTML in ``Accept`` before, or without, JSON, as browsers do."""
    accept = request.headers.get("accept", "")
    html, json = accept.find("text/html"), accept.find("application/json")
    return html >= 0 and (json < 0 or html < json)


def from_error(error: ShardplanError) -> Problem:
    """The problem an error of this product stands for."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = {
        HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": 'Bearer realm="shardplan"'},
        HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": str(RETRY_AFTER_S)},
        HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": str(SWEEPS_RETRY_AFTER_S)},
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE: {"Accept": JSON},
    }.get(HTTPStatus(status), {})
    return Problem(status=status, code=error.code, title=error.title, detail=error.detail, errors=error.errors, headers=headers)


def from_validation(errors: tuple[FieldError, ...]) -> Problem:
    """The problem of a body that does not have the right shape."""
    first = errors[0]
    detail = f"{first.msg}; {first.hint}" if first.hint else first.msg
    if len(errors) > 1:
        detail += f" (and {len(errors) - 1} more)"
    return Problem(status=422, code=InvalidRequestError.code, title=InvalidRequestError.title, detail=detail, errors=errors)


def not_json(detail: str, *, loc: tuple[str | int, ...] = ()) -> Problem:
    """The problem of a body that is not JSON at all."""
    return Problem(status=400, code="not_json", title="The body is not JSON", detail=detail, errors=(FieldError(loc, detail),))


def unexpected() -> Problem:
    """The problem of a fault of ours: no detail but the id under which the log has it."""
    detail = f"this is a fault in Shardplan, not in the request; the log has it under {request_id_var.get()}"
    return Problem(status=500, code="internal", title="Something broke here", detail=detail)


async def _on_shardplan_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ShardplanError):
        raise error
    problem = from_error(error)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("unavailable: %s", error.detail, exc_info=error)
    return respond(request, problem)


async def _on_invalid_body(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    complaints = error.errors()
    broken = next((complaint for complaint in complaints if complaint["type"] == "json_invalid"), None)
    if broken is not None:
        at, why = broken["loc"][-1], broken.get("ctx", {}).get("error", "a syntax error")
        return respond(request, not_json(f"the body is not JSON: {why} at character {at}"))
    return respond(request, from_validation(field_errors(complaints, _body_type(request))))


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    what = {
        HTTPStatus.NOT_FOUND: f"there is nothing at {request.url.path[:200]}",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not possible at {request.url.path[:200]}",
    }
    detail = what.get(status, "") if error.detail == status.phrase else str(error.detail)
    problem = Problem(
        status=error.status_code,
        code=status.phrase.lower().replace(" ", "_").replace("'", ""),
        title=status.phrase,
        detail=detail or status.description or status.phrase,
        headers=error.headers or {},
    )
    return respond(request, problem)


def _body_type(request: Request) -> Any:
    """What the endpoint reads its body as; None where it takes several parts or none."""
    body = getattr(request.scope.get("route"), "body_field", None)
    return getattr(getattr(body, "field_info", None), "annotation", None)
