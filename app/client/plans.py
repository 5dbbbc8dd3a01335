"""Planning, and plans that are kept."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel

from app.client import operations
from app.client.asking import Asking
from app.client.transport import Given
from app.services.audit_request import AuditRequest
from app.services.request import PlanRequest
from app.web.comparing import CompareOut, ReplanOut
from app.web.schemas import AuditOut, DialectName, FileName, PlanOut, PlanSummaryOut, SavedPlanOut

Request: TypeAlias = PlanRequest | Mapping[str, Any]
"""A question, as the service's own type or as the object its JSON would be."""


class PlanCalls(Asking):
    """What ``/plan`` and ``/plans`` do."""

    def plan(self, request: Request, *, calibrate: bool = True) -> PlanOut:
        """Plan; nothing is stored. That nothing fits is an answer too: see its ``verdict``.

        Args:
            request: the question.
            calibrate: whether ``calibration`` has what runs measured on that service say; the figures elsewhere never have.
        """
        return self._answer(operations.PLAN, Given(query={} if calibrate else {"calibrate": "false"}, body=document_of(request)))

    def plan_file(self, request: Request, filename: FileName, dialect: DialectName = "plain") -> str:
        """One file of the recommended plan; ``ProblemError`` 409 where nothing fits or the file is another framework's."""
        given = Given(path={"file": filename}, query={"dialect": dialect}, body=document_of(request))
        return self._send(operations.PLAN_FILE, given).text

    def audit(self, request: AuditRequest | Mapping[str, Any]) -> AuditOut:
        """Read an existing configuration against its model and GPUs; nothing is stored."""
        return self._answer(operations.AUDIT, Given(body=document_of(request)))

    def save(self, request: Request, name: str = "", note: str = "", *, idempotency_key: str | None = None) -> SavedPlanOut:
        """Plan and save, once however often it is sent: under the key given, or one made for this call.

        ``edit_token`` of the answer deletes the plan. It is given once: where the first answer was lost on its way and this
        is the second, it is None.
        """
        key = idempotency_key or uuid.uuid4().hex
        body = document_of(request) | {key: value for key, value in (("name", name), ("note", note)) if value}
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
        return self._send(operations.FILE, given).text

    def delete(self, plan_id: str, edit_token: str) -> None:
        """Delete a saved plan, with the token its save answered with."""
        self._send(operations.DELETE, Given(path={"plan_id": plan_id}, headers={"Edit-Token": edit_token}))

    def replan(self, plan_id: str) -> ReplanOut:
        """The request of a saved plan under the service's engine of today, and what moved; nothing is saved."""
        return self._answer(operations.REPLAN, Given(path={"plan_id": plan_id}))

    def compare(self, *plan_ids: str) -> CompareOut:
        """Two to four saved plans side by side."""
        return self._answer(operations.COMPARE, Given(query={"ids": ",".join(plan_ids)}))


def document_of(request: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """What was said of a request, without the defaults, which are the service's to fill in."""
    return request.model_dump(mode="json", exclude_unset=True) if isinstance(request, BaseModel) else dict(request)
