"""Bodies of requests: small, quick and, if JSON, really JSON, before anything else reads them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.ingest.nesting import too_deep
from app.web import problems

JSON_LINES = re.compile(r"application/(?:x-)?(?:ndjson|jsonl|json-?lines)", re.IGNORECASE)
"""Media types of a JSON document a line."""
_AT_ONCE = 2**20
"""Bytes of a body that may be read as JSON between two other requests; what is larger is read in a thread."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """How large and how deep a body may be, and how long it may take to come; ``larger`` has the size for some paths."""

    max_bytes: int
    max_depth: int
    timeout_s: float
    larger: Mapping[str, int] = field(default_factory=dict)


class ClientLeftError(Exception):
    """The client closed the connection before its body was whole: nobody waits for an answer, and nothing is done."""


class BodyGuard:
    """Reads the body before the app does: refuses one that is too big, and JSON that is broken or too deep.

    Strict where Python's own reader is lenient: NaN, Infinity, numbers beyond double precision and halves of surrogate
    pairs are refused with their position, so that no endpoint ever meets them. JSON Lines are looked at line by line.
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
        declared, most = headers.get("content-length", "0"), self._limits.larger.get(scope["path"], self._limits.max_bytes)
        body, problem = None, _too_big(most)
        try:
            if declared.isdecimal() and int(declared[:20]) <= most:
                async with asyncio.timeout(self._limits.timeout_s):
                    body = await _read(receive, most)
        except TimeoutError:
            problem = _too_slow(self._limits.timeout_s)
        found = problem if body is None else await self._problem_of(headers, body)
        if found is not None:
            await problems.respond(Request(scope), found)(scope, receive, send)
            return
        await self._app(scope, _replay(body or b"", receive), send)

    async def _problem_of(self, headers: Headers, body: bytes) -> problems.Problem | None:
        if len(body) > _AT_ONCE:
            return await asyncio.to_thread(self._json_problem, headers, body)
        return self._json_problem(headers, body)

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
        if too_deep(value, self._limits.max_depth):
            where = "" if line is None else f" in line {line}"
            detail = f"objects and lists are nested more than {self._limits.max_depth} deep{where}"
            return problems.Problem(status=422, code="too_deep", title="The JSON is nested too deeply", detail=detail)
        return None


async def _read(receive: Receive, most: int) -> bytes | None:
    """The whole body; None as soon as it is too big, whatever its declared length."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            return None
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_big(most: int) -> problems.Problem:
    detail = f"the body is larger than {most:,} bytes; a config.json needs a few thousand"
    return problems.Problem(
        status=413, code="body_too_large", title="The body is too large", detail=detail, headers={"Connection": "close"}
    )  # fmt: skip


def _too_slow(timeout_s: float) -> problems.Problem:
    detail = f"the body was not there whole within {timeout_s:g} s; send it again at one go"
    return problems.Problem(
        status=408, code="body_too_slow", title="The body came too slowly", detail=detail, headers={"Connection": "close"}
    )


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
