"""Sweeps that a service keeps: made once per idempotency key, read while they run, cancelled, deleted."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import orjson
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, ShardplanError
from app.services.digest import sha256
from app.services.saved_plans import ForbiddenError, check_key, check_text, new_plan_id
from app.services.sweeps.reading import SweepLimits, WantedSweep
from app.services.sweeps.rows import chunks_of, pack, unpack
from app.services.sweeps.table import header, table
from app.store.session import Database
from app.store.sweeps import UNFINISHED, ChunkKey, NewChunk, NewSweep, StoredSweep, SweepRepository

ResultFormat = Literal["jsonl", "csv"]
MAX_NAME = 200


class TooManySweepsError(ShardplanError):
    """As many sweeps wait or run as may."""

    code = "too_many_sweeps"
    title = "Too many sweeps at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What an operator set.

    Attributes:
        limits: how large one may be.
        waiting_max: sweeps at most that wait or run.
        keep_days: how long one is kept after its end.
        lease_s: how long a chunk belongs to whoever took it, without a sign of life.
    """

    limits: SweepLimits = field(default_factory=SweepLimits)
    waiting_max: int = 20
    keep_days: float = 7
    lease_s: float = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSweep:
    """A sweep, and what only the answer to its making has.

    Attributes:
        expires_at: when it will be deleted; None while it is not finished.
        edit_token: the secret that cancels and deletes it, in the answer that made it; otherwise None.
        replayed: an earlier request with the same idempotency key had made it.
    """

    sweep: StoredSweep
    expires_at: datetime | None
    edit_token: str | None = None
    replayed: bool = False


def _no_jobs(_session: Session, _chunks: Sequence[ChunkKey]) -> None:
    """Chunks are found in the table."""


class Sweeps:
    """The use cases of ``/sweeps``, over one database.

    Attributes:
        reading: held by whoever reads a large request, so that one at a time takes the memory and the time for it.
    """

    def __init__(
        self,
        database: Database,
        options: SweepOptions = SweepOptions(),
        *,
        defer: Callable[[Session, Sequence[ChunkKey]], None] = _no_jobs,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        """Open the use cases.

        Args:
            defer: makes jobs for chunks, in the transaction that adds them.
            wake: called after it.
        """
        self.options = options
        self.reading = threading.Lock()
        self._database, self._defer, self._wake = database, defer, wake

    def check_room(self) -> None:
        """Refuse one more sweep while as many as may are not finished; raises ``TooManySweepsError``."""
        with self._database.session() as session:
            self._check_room(session)

    def create(self, wanted: WantedSweep, *, idempotency_key: str | None = None) -> KeptSweep:
        """Keep a sweep and its jobs, in one transaction.

        Raises:
            InvalidRequestError: name or key are not storable.
            ConflictError: the key was used for another sweep.
            TooManySweepsError: there are too many already.
            UnavailableError: the database does not answer.
        """
        check_text("name", wanted.name, MAX_NAME)
        if idempotency_key is not None:
            check_key(idempotency_key)
        token, digest = secrets.token_urlsafe(32), _hash_of(wanted)
        if replay := self._replayed(idempotency_key, digest):
            return replay
        sweep = NewSweep(
            id=new_plan_id(), created_at=datetime.now(UTC), name=wanted.name.strip(), detail=wanted.detail, total=len(wanted.requests),
            axes=list(wanted.axes), edit_token_hash=sha256(token.encode()), idempotency_key=idempotency_key, request_hash=digest,
        )  # fmt: skip
        chunks = [
            NewChunk(number=number, first=first, size=len(part), requests=pack(part))
            for number, (first, part) in enumerate(chunks_of(wanted.requests, wanted.detail))
        ]
        try:
            with self._database.session(write=True) as session:
                self._check_room(session)
                SweepRepository(session).add(sweep, chunks)
                self._defer(session, [ChunkKey(sweep.id, chunk.number) for chunk in chunks])
        except IntegrityError:  # another request with the same key was faster
            if replay := self._replayed(idempotency_key, digest):
                return replay
            raise
        self._wake()
        return replace(self.get(sweep.id), edit_token=token)

    def get(self, sweep_id: str) -> KeptSweep:
        """Read a sweep; raises ``NotFoundError``."""
        with self._database.session() as session:
            return self._kept(SweepRepository(session).get(sweep_id))

    def results(self, sweep_id: str, kind: ResultFormat = "jsonl") -> Iterator[bytes]:
        """What is done, in the order of the requests, a chunk at a time; raises ``NotFoundError`` before anything is given."""
        axes = self.get(sweep_id).sweep.axes
        return self._results(sweep_id, kind, axes)

    def cancel(self, sweep_id: str, edit_token: str) -> KeptSweep:
        """Do no more of a sweep; what is done stays. Raises ``NotFoundError``, or ``ForbiddenError`` where the token is another one."""
        with self._database.session(write=True) as session:
            allowed = SweepRepository(session).cancel(sweep_id, _token_hash(edit_token), datetime.now(UTC))
        if not allowed:
            raise _forbidden()
        return self.get(sweep_id)

    def delete(self, sweep_id: str, edit_token: str) -> None:
        """Delete a sweep with its results; raises ``NotFoundError``, or ``ForbiddenError`` where the token is another one."""
        with self._database.session(write=True) as session:
            allowed = SweepRepository(session).delete(sweep_id, _token_hash(edit_token))
        if not allowed:
            raise _forbidden()

    def unfinished(self) -> tuple[int, int]:
        """Sweeps that wait or run, and their chunks that are not done."""
        with self._database.session() as session:
            return SweepRepository(session).unfinished()

    def _results(self, sweep_id: str, kind: ResultFormat, axes: Sequence[str]) -> Iterator[bytes]:
        if kind == "csv":
            yield header(axes)
        number = -1
        while True:
            with self._database.session() as session:  # one transaction a chunk: a slow reader holds no connection
                found = SweepRepository(session).results_after(sweep_id, number)
            if found is None:
                return
            number, lines = found[0], unpack(found[1])
            yield table(lines, axes) if kind == "csv" else b"\n".join(lines) + b"\n"

    def _check_room(self, session: Session) -> None:
        waiting = SweepRepository(session).unfinished()[0]
        if waiting >= self.options.waiting_max:
            raise TooManySweepsError(f"{waiting} sweeps wait or run already, and no more may; send it again when one of them is done")

    def _replayed(self, key: str | None, digest: str) -> KeptSweep | None:
        if key is None:
            return None
        with self._database.session() as session:
            earlier = SweepRepository(session).under_key(key)
        if earlier is not None and earlier.request_hash != digest:
            raise ConflictError("this Idempotency-Key was used for another sweep; a key stands for one request, take a new one")
        return None if earlier is None else replace(self._kept(earlier), replayed=True)

    def _kept(self, sweep: StoredSweep) -> KeptSweep:
        ends = None if sweep.state in UNFINISHED or sweep.finished_at is None else sweep.finished_at
        return KeptSweep(sweep=sweep, expires_at=ends and ends + timedelta(days=self.options.keep_days))


def _hash_of(wanted: WantedSweep) -> str:
    head = orjson.dumps([wanted.name.strip(), wanted.detail, wanted.axes])
    return sha256(b"\n".join([head, *wanted.requests]))


def _token_hash(edit_token: str) -> str:
    return sha256(edit_token.encode(errors="replace"))


def _forbidden() -> ForbiddenError:
    return ForbiddenError("this edit_token is not the sweep's; it was given once, when the sweep was made")
