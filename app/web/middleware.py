"""What every request passes: an id, security headers, a log line, and a body that is small, quick and, if JSON, really JSON.

Plain ASGI, no task and no queue per request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from dataclasses import dataclass

import orjson
from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.ingest.nesting import too_deep
from app.observability import Metrics, request_id_var
from app.settings import AppSettings
from app.web import problems
from app.web.keys import Gate, Identify
from app.web.limits import Network, RateLimit, networks_of
from app.web.origins import AllowedHosts, came_by_https

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
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
BY_HTTPS = {"strict-transport-security": "max-age=31536000"}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CLIENT_LEFT = 499
"""For the log and the counters: nobody is there to be sent a status."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})

log = logging.getLogger("shardplan.request")


def install(app: FastAPI, settings: AppSettings, metrics: Metrics | None = None) -> None:
    """Put the middlewares around the app, the request context outermost; the counters are in ``app.state.metrics``."""
    trusted = networks_of(settings.trusted_proxies)
    limits = BodyLimits(max_bytes=settings.max_body_bytes, max_depth=settings.max_json_depth, timeout_s=settings.body_timeout_s)
    app.add_middleware(BodyGuard, limits=limits)
    if settings.require_keys:
        app.add_middleware(Gate)
    if settings.rate_limit:
        app.add_middleware(RateLimit, rates=settings.rate_limit, trusted_proxies=trusted)
    if settings.require_keys:  # before the rate limit, which counts by key
        app.add_middleware(Identify, check=app.state.key_check)
    if settings.allowed_hosts:
        app.add_middleware(AllowedHosts, hosts=settings.allowed_hosts)
    app.state.metrics = metrics or Metrics()
    app.add_middleware(RequestContext, metrics=app.state.metrics, trusted_proxies=trusted)


class RequestContext:
    """Gives a request its id, and its answer the id and the security headers; turns an escaped exception into a 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics, trusted_proxies: tuple[Network, ...] = ()) -> None:
        self._app = app
        self._metrics = metrics
        self._trusted = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        if https := came_by_https(scope, self._trusted):
            scope["scheme"] = "https"
        told = SECURITY_HEADERS | (BY_HTTPS if https else {})
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
                for name, value in told.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientLeftError:
            status = _CLIENT_LEFT
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
        if key := scope["state"].get("key"):
            extra["key"] = key.id
        log.info("%s %s %d", scope["method"], route, status, extra=extra)


def _route(scope: Scope) -> str:
    """Pattern of the path, which says no plan's id: whoever knows that reads the plan."""
    return getattr(scope.get("route"), "path", "unmatched")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """How large and how deep a body may be, and how long it may take to come."""

    max_bytes: int
    max_depth: int
    timeout_s: float


class ClientLeftError(Exception):
    """The client closed the connection before its body was whole: nobody waits for an answer, and nothing is done."""


class BodyGuard:
    """Reads the body before the app does: refuses one that is too big, and JSON that is broken or too deep.

    Strict where Python's own reader is lenient: NaN, Infinity, numbers beyond double precision and halves of surrogate
    pairs are refused with their position, so that no endpoint ever meets them.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or answer with the problem it has."""
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        body = None
        try:
            if declared.isdecimal() and int(declared[:20]) <= self._limits.max_bytes:
                async with asyncio.timeout(self._limits.timeout_s):
                    body = await self._read(receive)
            problem = self._too_big() if body is None else self._json_problem(headers, body)
        except TimeoutError:
            problem = self._too_slow()
        if problem is not None:
            await problems.respond(Request(scope), problem)(scope, receive, send)
            return
        await self._app(scope, _replay(body or b"", receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None as soon as it is too big, whatever its declared length."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._limits.max_bytes:
                return None
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_big(self) -> problems.Problem:
        detail = f"the body is larger than {self._limits.max_bytes:,} bytes; a config.json needs a few thousand"
        return problems.Problem(
            status=413,
            code="body_too_large",
            title="The body is too large",
            detail=detail,
            headers={"Connection": "close"},
        )

    def _too_slow(self) -> problems.Problem:
        detail = f"the body was not there whole within {self._limits.timeout_s:g} s; send it again at one go"
        return problems.Problem(
            status=408, code="body_too_slow", title="The body came too slowly", detail=detail, headers={"Connection": "close"}
        )

    def _json_problem(self, headers: Headers, body: bytes) -> problems.Problem | None:
        # As wide as can be: whatever an endpoint could take for JSON has to pass here.
        if not body or "json" not in headers.get("content-type", "").lower():
            return None
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            return problems.not_json(f"the body is not JSON: {error.msg} at {where}", loc=(error.lineno, error.colno))
        if too_deep(value, self._limits.max_depth):
            detail = f"objects and lists are nested more than {self._limits.max_depth} deep"
            return problems.Problem(status=422, code="too_deep", title="The JSON is nested too deeply", detail=detail)
        return None


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
