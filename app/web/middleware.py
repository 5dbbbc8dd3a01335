"""What every request passes: an id, security headers and a log line; then the host, the key, the rate and the body are looked at.

Plain ASGI, no task and no queue per request.
"""

from __future__ import annotations

import logging
import re
import time
import uuid

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.observability import Metrics, request_id_var
from app.settings import AppSettings
from app.web import problems
from app.web.bodies import BodyGuard, BodyLimits, ClientLeftError
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

log = logging.getLogger("shardplan.request")


def install(app: FastAPI, settings: AppSettings, metrics: Metrics | None = None) -> None:
    """Put the middlewares around the app, the request context outermost; the counters are in ``app.state.metrics``."""
    trusted = networks_of(settings.trusted_proxies)
    limits = BodyLimits(
        max_bytes=settings.max_body_bytes, max_depth=settings.max_json_depth, timeout_s=settings.body_timeout_s,
        larger={"/sweeps": settings.max_sweep_body_bytes},
    )  # fmt: skip
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
