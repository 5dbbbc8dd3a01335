"""Keys at the door: who sends a request, and whether its key may do that. Only where ``SHARDPLAN_REQUIRE_KEYS`` is set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from anyio import CapacityLimiter, fail_after, to_thread
from fastapi import Request, Response
from starlette.datastructures import MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.errors import ShardplanError
from app.services.key_check import KeyCheck, UnauthorizedError
from app.services.saved_plans import ForbiddenError
from app.store.keys import StoredKey
from app.web import problems
from app.web.origins import refuse_cross_site

Rule = tuple[str, str, str]
RULES: tuple[Rule, ...] = (
    ("GET POST", r"/", "plan"),
    ("POST", r"/plan(/.*)?", "plan"),
    ("GET POST", r"/download/.*", "plan"),
    ("GET POST", r"/charts/.*", "plan"),
    ("GET", r"/what-if", "plan"),
    ("GET POST", r"/preview", "plan"),
    ("POST", r"/diff", "plan"),
    ("GET POST", r"/audit(/.*)?", "plan"),
    ("GET POST", r"/diagnose(/.*)?", "plan"),
    ("GET", r"/(catalog|method)(/.*)?", "plan"),
    ("GET", r"/docs|/openapi\.json", "plan"),
    ("POST", r"/plans/[^/]+/(replan|diff)", "read"),
    ("GET", r"/(plans|sweeps)(/.*)?", "read"),
    ("POST DELETE", r"/(plans|sweeps)(/.*)?", "write"),
    ("POST", r"/save", "write"),
    ("GET", r"/metrics", "admin"),
)
"""Methods, path and the scope they take; the first that matches counts. A route that is in none takes ``admin``."""
UNLISTED = "admin"
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
_OPEN = re.compile(r"/healthz|/readyz|/sign-in|/sign-out|/language|/static/.*", re.DOTALL)
"""What takes no key."""
_ASK_S, _PAUSE_S = 2.0, 10.0
"""How long a database may take to answer for a key, and how long it is left alone when it took longer."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def rule_for(method: str, path: str) -> str | None:
    """The scope that a method and path take; None where no rule says so.

    Example:
        >>> rule_for("GET", "/plans/abc/launch.sh"), rule_for("DELETE", "/sweeps/abc"), rule_for("GET", "/new")
        ('read', 'write', None)
    """
    method = "GET" if method == "HEAD" else method
    return next((scope for methods, pattern, scope in RULES if method in methods.split() and re.fullmatch(pattern, path, re.DOTALL)), None)


def is_open(path: str) -> bool:
    """Whether a path takes no key."""
    return _OPEN.fullmatch(path) is not None


def cookie_name(scheme: str) -> str:
    """The cookie that a browser keeps its key in; by https under a name that only this host can set."""
    return "__Host-shardplan_key" if scheme == "https" else "shardplan_key"


class Identify:
    """Finds out whose key a request brings, and leaves it in ``request.state.key``, or in ``key_error`` what is wrong with it."""

    def __init__(self, app: ASGIApp, check: KeyCheck) -> None:
        self._app, self._check = app, check
        self._limiter = CapacityLimiter(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look, and pass the request on in any case."""
        if scope["type"] == "http" and not is_open(scope["path"]):
            text, by_cookie = _given(Request(scope))
            state = scope.setdefault("state", {})
            try:
                state["key"] = await self._checked(text)
                state["key_by_cookie"] = by_cookie
            except ShardplanError as error:
                state["key_error"] = error
        await self._app(scope, receive, send)

    async def _checked(self, text: str) -> StoredKey:
        """In memory as a rule; otherwise in a thread, for no longer than a client should wait for that."""
        if not text:
            raise UnauthorizedError("this service takes a key; send it as Authorization: Bearer shp_…")
        known = self._check.remembered(text)
        if known is not None:
            return known
        try:
            with fail_after(_ASK_S):
                return await to_thread.run_sync(self._check.ask, text, abandon_on_cancel=True, limiter=self._limiter)
        except TimeoutError:
            self._check.away(_PAUSE_S)
            return self._check.without_database(text)


class Gate:
    """Lets a request in whose key has the scope its route takes; a browser without one is sent to sign in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it. What is behind a key is kept in no cache."""
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        state = scope.setdefault("state", {})
        key: StoredKey | None = state.get("key")
        refusal = _refused(request, key) if key else _without_key(request, state.get("key_error"))
        answer = self._app if refusal is None else refusal
        await answer(scope, receive, _uncached(send))


def _given(request: Request) -> tuple[str, bool]:
    """The key of a request, and whether a cookie brought it; a header goes before a cookie."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme:
        return (text.strip() if scheme.lower() == "bearer" else ""), False
    return request.cookies.get(cookie_name(request.url.scheme), ""), True


def _without_key(request: Request, error: ShardplanError | None) -> Response:
    error = error or UnauthorizedError("this service takes a key")
    if not isinstance(error, UnauthorizedError) or not problems.prefers_html(request):
        return _answer(request, error, {} if "authorization" not in request.headers else {"error": "invalid_token"})
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return Response(status_code=303, headers={"location": sign_in_address(path if request.method in _SAFE else "/"), "vary": "Accept"})


def sign_in_address(path: str) -> str:
    """Where a browser signs in, to go on to a path of this service."""
    return SIGN_IN if path == "/" else f"{SIGN_IN}?{urlencode({'next': path}, quote_via=quote)}"


def _refused(request: Request, key: StoredKey) -> Response | None:
    """The answer to a request whose key does not do; None where it does."""
    try:
        if request.state.key_by_cookie and request.method not in _SAFE:
            refuse_cross_site(request)
        _check_scope(request, key)
    except ForbiddenError as error:
        needed = _needed(request)
        lacking = {"error": "insufficient_scope", "scope": needed} if needed and needed not in key.scopes else None
        return _answer(request, error, lacking)
    return None


def _check_scope(request: Request, key: StoredKey) -> None:
    needed = _needed(request)
    if needed is None or needed in key.scopes:
        return
    has = ", ".join(sorted(key.scopes))
    raise ForbiddenError(
        f"{request.method} {request.url.path[:200]} takes the scope {needed}; the key {key.id} has {has}. Ask for a key with {needed}."
    )


def _needed(request: Request) -> str | None:
    """The scope a request takes; None where there is nothing at its address, which is then said."""
    found = rule_for(request.method, request.scope["path"])
    if found is not None:
        return found
    routes = request.app.router.routes
    return UNLISTED if any(route.matches(request.scope)[0] is Match.FULL for route in routes) else None


def _answer(request: Request, error: ShardplanError, challenge: Mapping[str, str] | None) -> Response:
    answer = problems.respond(request, problems.from_error(error))
    if challenge is not None and answer.status_code in (401, 403):
        parts = {"realm": "shardplan"} | dict(challenge)
        answer.headers["www-authenticate"] = "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parts.items())
    return answer


def _uncached(send: Send) -> Send:
    async def send_uncached(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("cache-control", "no-store")
        await send(message)

    return send_uncached


def client_id(state: Mapping[str, Any]) -> str:
    """The client a request's key stands for, the same after a rotation; empty where no key was asked for."""
    key: StoredKey | None = state.get("key")
    return key.owner if key else ""
