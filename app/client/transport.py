"""Requests over HTTP: tried again while that can help, never sent on to another host, and every failure an error for people."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import httpx

from app import ENGINE_VERSION
from app.client.errors import AnswerError, ServiceUnavailableError, described, document_of, problem_of
from app.client.operations import Operation
from app.domain.errors import InvalidRequestError, ShardplanError

_NOT_NOW = frozenset({429, 502, 503, 504})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def _silent(_why: ShardplanError, _seconds: float) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How patient a client is.

    Attributes:
        tries: most requests for one thing.
        first_wait_s: before the second try, where the service does not say; doubled each time, and varied by a quarter.
        longest_wait_s: a service that wants a longer pause than this is not waited for.
        on_wait: told of each pause before it: why, and for how many seconds.
        sleep: how to wait.
    """

    tries: int = 4
    first_wait_s: float = 0.5
    longest_wait_s: float = 60.0
    on_wait: Callable[[ShardplanError, float], None] = _silent
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, tried: int, asked_s: float | None) -> float:
        """Seconds before the next try, after ``tried`` of them."""
        if asked_s is not None:
            return asked_s
        doubled = self.first_wait_s * 2.0 ** (tried - 1)
        spread = random.uniform(0.75, 1.25)  # noqa: S311  # nosec B311
        return min(self.longest_wait_s, doubled * spread)


PATIENT = Retry()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one call fills in: parts of the path, query, headers and body, or the lines that are sent instead of it."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    lines: bytes | None = None


class Transport:
    """Sends operations to one service."""

    def __init__(
        self, url: str, *, api_key: str | None, timeout_s: float, retry: Retry, transport: httpx.BaseTransport | None = None
    ) -> None:
        address = _address(url)
        self.shown = str(address.copy_with(userinfo=b"")).rstrip("/")
        self._retry = retry
        headers = {"Accept": "application/json", "User-Agent": f"shardplan/{ENGINE_VERSION}"}
        if api_key:
            headers["Authorization"] = f"Bearer {_header('api_key', api_key)}"
        # No redirect is followed: a key, and a model that is nobody else's business, would go where nobody sent them.
        self._http = httpx.Client(base_url=address, headers=headers, timeout=timeout_s, follow_redirects=False, transport=transport)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, operation: Operation, given: Given) -> httpx.Response:
        """The answer of an operation that succeeded.

        Raises:
            ProblemError: the service refuses.
            ServiceUnavailableError: it does not answer, or not now, and the tries are used up.
            AnswerError: it redirects.
            InvalidRequestError: what is given cannot be sent.
        """
        request, tried = self._request(operation, given), 0
        while True:
            tried += 1
            found, again = self._try(operation, request)
            if isinstance(found, httpx.Response):
                return found
            wait_s = self._retry.wait_s(tried, getattr(found, "retry_after_s", None))
            if not again or tried >= self._retry.tries or wait_s > self._retry.longest_wait_s:
                raise found
            self._retry.on_wait(found, wait_s)
            self._retry.sleep(wait_s)

    def stream(self, operation: Operation, given: Given) -> Iterator[bytes]:
        """The answer as it comes, a part at a time; raises what ``send`` does, or that the answer breaks off."""
        with contextlib.closing(self.send(operation, given)) as response:
            try:
                yield from response.iter_bytes()
            except httpx.RequestError as error:
                raise ServiceUnavailableError(f"the answer of {self.shown} breaks off: {_reason(error)}") from error

    def _try(self, operation: Operation, request: httpx.Request) -> tuple[httpx.Response | ShardplanError, bool]:
        """An answer, or what went wrong; and whether asking again may help and cannot hurt."""
        try:
            response = self._http.send(request, stream=operation.streamed)
            if not response.is_success:
                with contextlib.closing(response):
                    response.read()
        except httpx.RequestError as error:
            failure = ServiceUnavailableError(f"{self.shown} does not answer: {_reason(error)}")
            return failure, operation.patient and (operation.repeatable or isinstance(error, _NOT_SENT))
        status = response.status_code
        if response.is_success:
            return response, False
        if status in _NOT_NOW:
            return self._not_now(response), operation.patient and (operation.repeatable or status == httpx.codes.TOO_MANY_REQUESTS)
        if response.is_redirect:
            return AnswerError(f"{self.shown} sends this on to {response.headers['location'][:200]}; give the address it ends at"), False
        return problem_of(response, where=self.shown), False

    def _not_now(self, response: httpx.Response) -> ServiceUnavailableError:
        problem = problem_of(response, where=self.shown)
        detail = problem.detail if document_of(response) else f"{self.shown} answers {described(response)}"
        retry_after_s = _seconds(response.headers.get("retry-after", ""))
        return ServiceUnavailableError(detail, status=response.status_code, retry_after_s=retry_after_s, errors=problem.errors)

    def _request(self, operation: Operation, given: Given) -> httpx.Request:
        unknown = (given.query.keys() - set(operation.query)) | (given.headers.keys() - set(operation.headers))
        if unknown:
            raise TypeError(f"{operation.method} {operation.path} has no {', '.join(sorted(unknown))}")
        path = operation.path.format(**{name: _segment(name, value) for name, value in given.path.items()})
        query = {name: value for name, value in given.query.items() if value is not None}
        headers = {name: _header(name, value) for name, value in given.headers.items()}
        content, media_type = given.lines, operation.or_lines
        if operation.body is not None and content is None:
            content, media_type = json_of(given.body), "application/json"
        if content is not None and media_type is not None:
            headers["Content-Type"] = media_type
        return self._http.build_request(operation.method, path, params=query or None, headers=headers, content=content)


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise InvalidRequestError.at("url", msg=f"{url[:200]!r} is no address: {error}") from error
    if address.scheme not in ("http", "https") or not address.host:
        hint = "give http://host:port or https://host"
        raise InvalidRequestError.at("url", msg=f"{url[:200]!r} is not the address of a service", hint=hint)
    return address


def _segment(name: str, value: str) -> str:
    """A part of a path, whatever characters it has; one that would lead elsewhere is refused."""
    if value in ("", ".", ".."):
        raise InvalidRequestError.at(name, msg=f"{name} is {value!r}, which names nothing")
    return quote(value, safe="")


def _header(name: str, value: str) -> str:
    """The value of a header; control characters and what is not ASCII cannot be sent, and the value is never repeated."""
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise InvalidRequestError.at(name, msg=f"{name} has characters that no header can carry, such as a line break or a space at an end")
    return value


def json_of(body: Any) -> bytes:
    """What is sent of a body; NaN, which would become something else on its way, and what is no JSON are refused."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the request cannot be written as JSON: {error}") from error


def _seconds(retry_after: str) -> float | None:
    """What ``Retry-After`` says, be it seconds or a time."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def _reason(error: httpx.RequestError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__
