"""What every request passes: an id, security headers, a log line, and a body that is small and, if JSON, really JSON.

Plain ASGI, no task and no queue per request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Mapping

import orjson
from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.ingest.nesting import too_deep
from app.observability import Metrics, request_id_var
from app.settings import AppSettings
from app.web import problems
from app.web.limits import RateLimit, networks_of

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
JSON_LINES = re.compile(r"application/(?:x-)?(?:ndjson|jsonl|json-?lines)", re.IGNORECASE)
"""Media types of a JSON document a line."""
_AT_ONCE = 2**20
"""Bytes of a body that may be read as JSON between two other requests; what is larger is read in a thread."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})

log = logging.getLogger("shardplan.request")


def install(app: FastAPI, settings: AppSettings, metrics: Metrics | None = None) -> None:
    """Put the middlewares around the app, the request context outermost; the counters are in ``app.state.metrics``."""
    larger = {"/sweeps": settings.max_sweep_body_bytes}
    app.add_middleware(BodyGuard, max_bytes=settings.max_body_bytes, max_depth=settings.max_json_depth, larger=larger)
    if settings.rate_limit:
        app.add_middleware(RateLimit, rates=settings.rate_limit, trusted_proxies=networks_of(settings.trusted_proxies))
    app.state.metrics = metrics or Metrics()
    app.add_middleware(RequestContext, metrics=app.state.metrics)


class RequestContext:
    """Gives a request its id, and its answer the id and the security headers; turns an escaped exception into a 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        token = request_id_var.set(request_id)
        started = time.perf_counter()
        self._metrics.begin()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            log.exception("unexpected error in %s %s", scope["method"], _route(scope))
            if status:
                raise  # half an answer is out: only closing the connection tells the client
            response = problems.respond(Request(scope), problems.unexpected())
            await response(scope, receive, send_with_headers)
        finally:
            self._record(scope, status, time.perf_counter() - started)
            request_id_var.reset(token)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = _route(scope)
        self._metrics.observe(scope["method"], route, status, seconds)
        extra = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1000, 2)}
        log.info("%s %s %d", scope["method"], route, status, extra=extra)


def _route(scope: Scope) -> str:
    """Pattern of the path, which says no plan's id: whoever knows that reads the plan."""
    return getattr(scope.get("route"), "path", "unmatched")


class BodyGuard:
    """Reads the body before the app does: refuses one that is too big, and JSON that is broken or too deep.

    Strict where Python's own reader is lenient: NaN, Infinity, numbers beyond double precision and halves of surrogate
    pairs are refused with their position, so that no endpoint ever meets them. JSON Lines are looked at line by line.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_depth: int, larger: Mapping[str, int] | None = None) -> None:
        """Guard an app.

        Args:
            max_bytes: size of a body at most; ``larger`` has that of some paths.
            max_depth: nesting at most.
        """
        self._app = app
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._larger = larger or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or answer with the problem it has."""
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared, most = headers.get("content-length", "0"), self._larger.get(scope["path"], self._max_bytes)
        body = None
        if declared.isdecimal() and int(declared[:20]) <= most:
            body = await self._read(receive, most)
        if body is None:
            problem: problems.Problem | None = _too_big(most)
        elif len(body) > _AT_ONCE:
            problem = await asyncio.to_thread(self._json_problem, headers, body)
        else:
            problem = self._json_problem(headers, body)
        if problem is not None:
            await problems.respond(Request(scope), problem)(scope, receive, send)
            return
        await self._app(scope, _replay(body or b"", receive), send)

    async def _read(self, receive: Receive, most: int) -> bytes | None:
        """The whole body; None as soon as it is too big, whatever its declared length."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > most:
                return None
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _json_problem(self, headers: Headers, body: bytes) -> problems.Problem | None:
        # As wide as can be: whatever an endpoint could take for JSON has to pass here.
        given = headers.get("content-type", "").lower()
        if not body or "json" not in given:
            return None
        if not JSON_LINES.search(given):
            return self._document_problem(body)
        numbered = ((number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip())
        return next(filter(None, (self._document_problem(line, number) for number, line in numbered)), None)

    def _document_problem(self, text: bytes, line: int | None = None) -> problems.Problem | None:
        """What is wrong with one JSON document, which is a line of the body where its number is given."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            at = line or error.lineno
            what = "the body" if line is None else f"line {line}"
            return problems.not_json(f"{what} is not JSON: {error.msg} at line {at}, column {error.colno}", loc=(at, error.colno))
        if too_deep(value, self._max_depth):
            where = "" if line is None else f" in line {line}"
            detail = f"objects and lists are nested more than {self._max_depth} deep{where}"
            return problems.Problem(status=422, code="too_deep", title="The JSON is nested too deeply", detail=detail)
        return None


def _too_big(most: int) -> problems.Problem:
    detail = f"the body is larger than {most:,} bytes; a config.json needs a few thousand"
    return problems.Problem(
        status=413, code="body_too_large", title="The body is too large", detail=detail, headers={"Connection": "close"}
    )  # fmt: skip


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body once more, then whatever really comes next (the disconnect)."""
    pending = True

    async def replay() -> Message:
        nonlocal pending
        if pending:
            pending = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
