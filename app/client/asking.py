"""What every part of the client stands on: a service at an address, and answers read as models."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from app.client.errors import AnswerError
from app.client.operations import Answered, Operation
from app.client.transport import PATIENT, Given, Retry, Transport

M = TypeVar("M", bound=BaseModel)


class Asking:
    """Sends operations to a service at an address; ``Client`` says what the arguments are."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry: Retry = PATIENT,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._transport = Transport(url, api_key=api_key, timeout_s=timeout_s, retry=retry, transport=transport)
        self.url = self._transport.shown
        self._retry = retry

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _stream(self, operation: Operation, given: Given) -> Iterator[bytes]:
        return self._transport.stream(operation, given)

    def _send(self, operation: Operation, given: Given) -> httpx.Response:
        return self._transport.send(operation, given)

    def _json(self, operation: Operation, given: Given) -> dict[str, Any]:
        return _parsed(self._send(operation, given), self.url)

    def _answer(self, operation: Answered[M], given: Given) -> M:
        found = self._json(operation, given)
        try:
            return operation.answer.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            served = f", engine {found['engine_version']}," if "engine_version" in found else ""
            raise AnswerError(f"the answer of {self.url}{served} is not one this client knows: {where}: {first['msg']}") from error


def _parsed(response: httpx.Response, url: str) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError as error:
        raise AnswerError(f"the answer of {url} is not JSON; is it the address of a Shardplan service?") from error
    if not isinstance(found, dict):
        raise AnswerError(f"the answer of {url} is not a JSON object; is it the address of a Shardplan service?")
    return found
