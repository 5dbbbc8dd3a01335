"""Many requests as one job: asked for, waited for, and its rows read as they come."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import orjson
from pydantic import BaseModel

from app.client import operations
from app.client.asking import Asking
from app.client.errors import AnswerError, ServiceUnavailableError, SweepNotDoneError
from app.client.plans import Request, document_of
from app.client.transport import Given, json_of
from app.domain.errors import InvalidRequestError
from app.services.request import PlanRequest
from app.services.sweeps.reading import Detail, GridIn, SweepIn
from app.web.schemas import SweepOut

_FIRST_PAUSE_S, _LONGER = 0.2, 1.5
_AWAY_S = 300.0
"""How long a service may be away while a sweep is waited for: long enough for it to be started anew."""


def _unseen(_sweep: SweepOut) -> None:
    """Shows nothing."""


class SweepCalls(Asking):
    """What ``/sweeps`` does."""

    def sweep(
        self,
        requests: Iterable[Request] | None = None,
        *,
        grid: GridIn | Mapping[str, Any] | None = None,
        name: str = "",
        detail: Detail = "figures",
        idempotency_key: str | None = None,
    ) -> SweepOut:
        """Have many requests planned as one job, made once however often it is sent: under the key given, or one of this call.

        Args:
            requests, grid: either requests, or ``base``, a request, and ``axes``, values by path, of which every combination is planned.
            name: what it is called.
            detail: ``figures``, totals of each plan; ``plan``, each whole.

        Returns:
            The sweep. ``edit_token`` cancels and deletes it, and is given once: None where the first answer was lost on its way.
        """
        given: dict[str, Any] = {"name": name, "detail": detail}
        if requests is not None:
            given["requests"] = [document_of(request) for request in requests]
        if grid is not None:
            given["grid"] = _grid(grid)
        return self.sweep_document(given, idempotency_key=idempotency_key)

    def sweep_document(self, document: SweepIn | Mapping[str, Any], *, idempotency_key: str | None = None) -> SweepOut:
        """The same of a document as it is, such as one read from a file."""
        body = _plain(document)
        return self._answer(operations.SWEEP, Given(headers=_key(idempotency_key), body=body))

    def sweep_lines(
        self,
        requests: Iterable[bytes | str | Request],
        *,
        name: str = "",
        detail: Detail = "figures",
        idempotency_key: str | None = None,
    ) -> SweepOut:
        """The same of lines: those of an opened file of JSON Lines, or requests, each of which becomes one."""
        if isinstance(requests, bytes | str):
            raise InvalidRequestError.at("requests", msg="this is one text", hint="give its lines, as an opened file or splitlines() does")
        lines = b"\n".join(map(_line, requests))
        return self._answer(
            operations.SWEEP, Given(query={"name": name or None, "detail": detail}, headers=_key(idempotency_key), lines=lines)
        )

    def get_sweep(self, sweep_id: str) -> SweepOut:
        """How far a sweep is."""
        return self._answer(operations.GET_SWEEP, Given(path={"sweep_id": sweep_id}))

    def sweep_rows(self, sweep_id: str) -> Iterator[dict[str, Any]]:
        """Rows that there are, in the order of the requests, read one by one as they come; ``index`` says of which request.

        Raises:
            ServiceUnavailableError: the answer breaks off, after the rows that came.
        """
        for line in _lines(self._results(sweep_id, "jsonl")):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise AnswerError(f"a row of {self.url} is not JSON: {error.msg} at column {error.colno}") from error
            if not isinstance(row, dict):
                raise AnswerError(f"a row of {self.url} is not a JSON object")
            yield row

    def sweep_jsonl(self, sweep_id: str, file: IO[bytes]) -> None:
        """Write the rows that there are into a file as JSON Lines; what was written before an error stays there."""
        file.writelines(self._results(sweep_id, "jsonl"))

    def sweep_csv(self, sweep_id: str, file: IO[bytes]) -> None:
        """The same as CSV, with a header."""
        file.writelines(self._results(sweep_id, "csv"))

    def wait_for_sweep(
        self, sweep_id: str, progress: Callable[[SweepOut], object] = _unseen, *, timeout_s: float | None = None, poll_s: float = 2.0
    ) -> SweepOut:
        """Wait until a sweep is done or cancelled; its ``state`` says which.

        Args:
            progress: told how far it is, each time it is asked.
            timeout_s: how long is waited; None for as long as it takes.
            poll_s: longest pause between two questions.

        Raises:
            SweepNotDoneError: the time is over; the sweep goes on.
            ServiceUnavailableError: the service was away for five minutes.
        """
        begun = heard = time.monotonic()
        pause_s = min(_FIRST_PAUSE_S, poll_s)
        while True:
            try:
                sweep = self.get_sweep(sweep_id)
            except ServiceUnavailableError as error:
                longer_s = max(pause_s, error.retry_after_s or 0.0)
                if time.monotonic() - heard + longer_s > (_AWAY_S if timeout_s is None else min(_AWAY_S, timeout_s)):
                    raise
            else:
                longer_s = pause_s
                heard = time.monotonic()
                progress(sweep)
                if sweep.state in ("done", "cancelled"):
                    return sweep
                if timeout_s is not None and heard - begun + pause_s > timeout_s:
                    raise SweepNotDoneError(sweep)
            self._retry.sleep(longer_s)
            pause_s = min(poll_s, pause_s * _LONGER)

    def cancel_sweep(self, sweep_id: str, edit_token: str) -> SweepOut:
        """Do no more of a sweep; its rows stay. One that is done stays as it is."""
        given = Given(path={"sweep_id": sweep_id}, headers={"Edit-Token": edit_token})
        return self._answer(operations.CANCEL_SWEEP, given)

    def delete_sweep(self, sweep_id: str, edit_token: str) -> None:
        """Delete a sweep with its rows; where it runs, it stops."""
        self._send(operations.DELETE_SWEEP, Given(path={"sweep_id": sweep_id}, headers={"Edit-Token": edit_token}))

    def _results(self, sweep_id: str, kind: str) -> Iterator[bytes]:
        return self._stream(operations.SWEEP_RESULTS, Given(path={"sweep_id": sweep_id}, query={"format": kind}))


def _key(given: str | None) -> dict[str, str]:
    return {"Idempotency-Key": given or uuid.uuid4().hex}


def _plain(given: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    return given.model_dump(mode="json", exclude_unset=True) if isinstance(given, BaseModel) else dict(given)


def _grid(grid: GridIn | Mapping[str, Any]) -> dict[str, Any]:
    """A grid, whose base may be a request."""
    given = _plain(grid)
    return given | {"base": document_of(given["base"])} if isinstance(given.get("base"), PlanRequest) else given


def _line(given: bytes | str | Request) -> bytes:
    if isinstance(given, bytes | str):
        text = given.encode() if isinstance(given, str) else given
        return text.rstrip(b"\r\n")
    return json_of(document_of(given))


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Lines as the service writes them, which a text may not be split into: some characters of JSON look like line ends to Python."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from whole
    if rest:
        yield rest
