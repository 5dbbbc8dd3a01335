"""From requests to rows: each is planned as a single call plans it, and one that makes no sense becomes a row that says so."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from app.domain.errors import ShardplanError, UnavailableError
from app.ingest.hub import Hub
from app.services.document import figures_document
from app.services.plan import brief_plan, planned
from app.services.request import PlanRequest
from app.services.sweeps.grid import value_at

CHUNK, PLANS_CHUNK = 100, 20
"""Requests that are worked on together; fewer where whole plans are wanted, which are a hundred times as large."""
_LEVEL = 1
_HUB_PAUSES_S = (1.0, 4.0, 10.0)
"""What one chunk waits in all for a hub that does not answer, before its rows say so."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of some requests in a row: a line of JSON each, and how many there are by verdict, ``failed`` last."""

    lines: Sequence[bytes]
    counts: tuple[int, int, int, int]


def chunks_of(requests: Sequence[bytes], detail: str) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Requests that are worked on together, with the number of the first of them."""
    size = PLANS_CHUNK if detail == "plan" else CHUNK
    return ((first, requests[first : first + size]) for first in range(0, len(requests), size))


def pack(lines: Iterable[bytes]) -> bytes:
    """Lines as they are stored."""
    return zlib.compress(b"\n".join(lines), _LEVEL)


def unpack(stored: bytes) -> list[bytes]:
    """What was packed."""
    return zlib.decompress(stored).split(b"\n")


@dataclass(slots=True)
class RowMaker:
    """Plans requests one after another.

    Attributes:
        hub: where models named by ``hf_id`` are fetched from; None where that is switched off.
        sleep: how it waits for a hub that does not answer.
    """

    hub: Hub | None = None
    sleep: Callable[[float], object] = time.sleep

    def rows(
        self, requests: Sequence[bytes], first: int, detail: str, axes: Sequence[str], go_on: Callable[[], bool] = lambda: True
    ) -> Rows | None:
        """The rows of some requests.

        Args:
            requests: a JSON document each.
            first: number of the first of them in its sweep.
            detail: ``figures`` or ``plan``.
            axes: paths whose values each row repeats.
            go_on: asked before each; None comes back where it says no.
        """
        lines, counts = [], dict.fromkeys(("fits", "tight", "does_not_fit", "failed"), 0)
        pauses = iter(_HUB_PAUSES_S)
        for index, line in enumerate(requests, first):
            if not go_on():
                return None
            request = orjson.loads(line)
            head: dict[str, Any] = {"index": index}
            if axes:
                head["axes"] = {path: value_at(request, path) for path in axes}
            answer = self._answer(request, detail, pauses)
            counts[answer.get("verdict", "failed")] += 1
            lines.append(orjson.dumps(head | answer, default=str))
        return Rows(lines=lines, counts=(counts["fits"], counts["tight"], counts["does_not_fit"], counts["failed"]))

    def _answer(self, request: Any, detail: str, pauses: Iterator[float]) -> dict[str, Any]:
        """The plan, or what is wrong with the request."""
        while True:
            try:
                wanted = PlanRequest.model_validate(request)
                return planned(wanted, self.hub).document() if detail == "plan" else figures_document(brief_plan(wanted, self.hub))
            except UnavailableError as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    return _failed(error)
                self.sleep(pause_s)
            except ShardplanError as error:
                return _failed(error)
            except ValidationError as error:  # taken by the version before, which was less strict
                return _error("invalid_request", "The request is not valid", f"{error.error_count()} fields are not valid in this version")
            except Exception:  # one request that the planner breaks on must not hold up the others
                log.exception("unexpected error in a request of a sweep")
                return _error("internal", "Something broke here", "this is a fault in Shardplan, not in the request; the log has it")


def _failed(error: ShardplanError) -> dict[str, Any]:
    errors = [{"loc": list(e.loc), "msg": e.msg, "hint": e.hint} for e in error.errors]
    return _error(error.code, error.title, error.detail, errors)


def _error(code: str, title: str, detail: str, errors: Sequence[Any] = ()) -> dict[str, Any]:
    return {"error": {"code": code, "title": title, "detail": detail, "errors": list(errors)}}
