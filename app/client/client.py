"""The client: one method for each thing the service does, with the types of the service itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from app.client import operations
from app.client.errors import AnswerError
from app.client.operations import Answered
from app.client.transport import PATIENT, Given, Retry, Transport
from app.services.request import PlanRequest
from app.web.comparing import CompareOut, ReplanOut
from app.web.schemas import CatalogEntryOut, CatalogOut, DialectName, FileName, PlanOut, PlanSummaryOut, SavedPlanOut

M = TypeVar("M", bound=BaseModel)
Request: TypeAlias = PlanRequest | Mapping[str, Any]
"""A question, as the service's own type or as the object its JSON would be."""


class Client:
    """A service at an address.

    Answers are the models of the OpenAPI document; what a newer service adds to them is kept, and is read as further
    attributes or from ``model_dump()``. What repeats safely is tried again after 429, 502, 503, 504 or no answer, as long
    as ``Retry-After`` says. May be shared by threads; close it, or use it as a context manager.

    Args:
        url: of the service, with the prefix it is served under if it has one.
        api_key: sent as ``Authorization: Bearer``, to this address only: redirects are not followed.
        timeout_s: longest silence in one try.
        retry: how often is tried, and how long is waited.
        transport: sends the requests; httpx's own if left out.

    Raises:
        InvalidRequestError: the address or the key cannot be used.
    """

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

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def plan(self, request: Request) -> PlanOut:
        """Plan; nothing is stored. That nothing fits is an answer too: see its ``verdict``."""
        return self._answer(operations.PLAN, Given(body=_document(request)))

    def plan_file(self, request: Request, filename: FileName, dialect: DialectName = "plain") -> str:
        """One file of the recommended plan; ``ProblemError`` 409 where nothing fits or the file is another framework's."""
        given = Given(path={"file": filename}, query={"dialect": dialect}, body=_document(request))
        return self._transport.send(operations.PLAN_FILE, given).text

    def save(self, request: Request, name: str = "", note: str = "", *, idempotency_key: str | None = None) -> SavedPlanOut:
        """Plan and save, once however often it is sent: under the key given, or one made for this call.

        ``edit_token`` of the answer deletes the plan. It is given once: where the first answer was lost on its way and this
        is the second, it is None.
        """
        key = idempotency_key or uuid.uuid4().hex
        body = _document(request) | {"name": name, "note": note}
        return self._answer(operations.SAVE, Given(headers={"Idempotency-Key": key}, body=body))

    def plans(
        self, words: str | None = None, *, name: str | None = None, model: str | None = None, gpu: str | None = None, page_size: int = 100
    ) -> Iterator[PlanSummaryOut]:
        """Saved plans, the newest first, fetched page by page as they are asked for.

        Args:
            words: looked for in name, model and GPUs alike.
            name, model, gpu: words of each.
            page_size: plans in one answer, 100 at most.
        """
        cursor: str | None = None
        while True:
            query = {"q": words, "name": name, "model": model, "gpu": gpu, "cursor": cursor, "limit": page_size}
            found = self._answer(operations.PLANS, Given(query=query))
            yield from found.items
            cursor = found.next_cursor
            if cursor is None:
                return

    def get(self, plan_id: str) -> SavedPlanOut:
        """A saved plan, as it was when it was saved."""
        return self._answer(operations.GET, Given(path={"plan_id": plan_id}))

    def file(self, plan_id: str, filename: str, dialect: DialectName = "plain") -> str:
        """A file of a saved plan, as it was when it was saved."""
        given = Given(path={"plan_id": plan_id, "file": filename}, query={"dialect": dialect})
        return self._transport.send(operations.FILE, given).text

    def delete(self, plan_id: str, edit_token: str) -> None:
        """Delete a saved plan, with the token its save answered with."""
        self._transport.send(operations.DELETE, Given(path={"plan_id": plan_id}, headers={"Edit-Token": edit_token}))

    def replan(self, plan_id: str) -> ReplanOut:
        """The request of a saved plan under the service's engine of today, and what moved; nothing is saved."""
        return self._answer(operations.REPLAN, Given(path={"plan_id": plan_id}))

    def compare(self, *plan_ids: str) -> CompareOut:
        """Two to four saved plans side by side."""
        return self._answer(operations.COMPARE, Given(query={"ids": ",".join(plan_ids)}))

    def catalog(self, kind: Literal["gpus", "instances", "models"]) -> CatalogOut:
        """A catalogue, with the titles of its sources."""
        return self._answer(operations.CATALOG, Given(path={"kind": kind}))

    def gpus(self) -> list[CatalogEntryOut]:
        """GPUs that a request can name."""
        return self.catalog("gpus").gpus or []

    def instances(self) -> list[CatalogEntryOut]:
        """Cloud instances that a request can name."""
        return self.catalog("instances").instances or []

    def models(self) -> list[CatalogEntryOut]:
        """Models that a request can name."""
        return self.catalog("models").models or []

    def ready(self) -> dict[str, str]:
        """What ``/readyz`` says where plans can be saved; otherwise ``ServiceUnavailableError`` at once, with what is wrong."""
        found = _parsed(self._transport.send(operations.READY, Given()), self.url)
        return {str(key): str(value) for key, value in found.items()}

    def _answer(self, operation: Answered[M], given: Given) -> M:
        found = _parsed(self._transport.send(operation, given), self.url)
        try:
            return operation.answer.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            served = f", engine {found['engine_version']}," if "engine_version" in found else ""
            raise AnswerError(f"the answer of {self.url}{served} is not one this client knows: {where}: {first['msg']}") from error


def _document(request: Request) -> dict[str, Any]:
    """What was said of a request, without the defaults, which are the service's to fill in."""
    return request.model_dump(mode="json", exclude_unset=True) if isinstance(request, PlanRequest) else dict(request)


def _parsed(response: httpx.Response, url: str) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError as error:
        raise AnswerError(f"the answer of {url} is not JSON; is it the address of a Shardplan service?") from error
    if not isinstance(found, dict):
        raise AnswerError(f"the answer of {url} is not a JSON object; is it the address of a Shardplan service?")
    return found
