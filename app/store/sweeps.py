"""Sweeps in the database: their chunks are added, claimed, finished once, read in order, and dropped after some days."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from sqlalchemy import ColumnElement, CursorResult, Select, and_, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from app.domain.errors import NotFoundError
from app.store.tables import SweepChunkRow, SweepRow

State = Literal["queued", "running", "done", "cancelled"]
UNFINISHED = ("queued", "running")
COUNTS = ("fits", "tight", "does_not_fit", "failed")
_BATCH = 200


class ChunkKey(NamedTuple):
    """Which chunk of which sweep."""

    sweep_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSweep:
    """A sweep about to be kept; see ``SweepRow``."""

    id: str
    created_at: datetime
    name: str
    detail: str
    total: int
    axes: list[str]
    edit_token_hash: str
    idempotency_key: str | None
    request_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSweep:
    """A sweep and how far it is.

    Attributes:
        counts: of the rows that are done: by verdict, and ``failed`` for requests that make no sense.
        engine_versions: of the programs that made them.
    """

    id: str
    created_at: datetime
    finished_at: datetime | None
    state: State
    name: str
    detail: str
    total: int
    axes: list[str]
    request_hash: str
    done: int
    counts: dict[str, int]
    engine_versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChunk:
    """Requests of a sweep in a row; ``requests`` is what the store keeps of them."""

    number: int
    first: int
    size: int
    requests: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedChunk:
    """A chunk to work on."""

    key: ChunkKey
    first: int
    detail: str
    axes: list[str]
    requests: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """What came of a chunk, with how many rows there are of each kind in the order of ``COUNTS``."""

    results: bytes
    engine_version: str
    counts: tuple[int, ...]


_SWEEP = tuple(getattr(SweepRow, name) for name in StoredSweep.__dataclass_fields__ if hasattr(SweepRow, name))


class SweepRepository:
    """Sweeps, seen through one transaction. Whatever changes a chunk locks its sweep first, so that nobody waits in a circle."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, sweep: NewSweep, chunks: Iterable[NewChunk]) -> None:
        """Insert a sweep with its chunks."""
        values = {name: getattr(sweep, name) for name in NewSweep.__dataclass_fields__}
        self._session.execute(insert(SweepRow).values(**values, state="queued"))
        none_yet = dict.fromkeys(COUNTS, 0) | {"sweep_id": sweep.id}
        rows = [{name: getattr(chunk, name) for name in NewChunk.__dataclass_fields__} | none_yet for chunk in chunks]
        for start in range(0, len(rows), _BATCH):
            self._session.execute(insert(SweepChunkRow), rows[start : start + _BATCH])

    def unfinished(self) -> tuple[int, int]:
        """Sweeps that are not done, and their chunks that are not."""
        sweeps = select(func.count()).select_from(SweepRow).where(SweepRow.state.in_(UNFINISHED))
        chunks = _waiting(select(func.count()))
        return self._session.execute(sweeps).scalar_one(), self._session.execute(chunks).scalar_one()

    def get(self, sweep_id: str) -> StoredSweep:
        """Read a sweep; raises ``NotFoundError``."""
        row = None if "\0" in sweep_id else self._session.execute(select(*_SWEEP).where(SweepRow.id == sweep_id)).first()
        if row is None:
            raise _unknown(sweep_id)
        c = SweepChunkRow
        of_sweep = and_(c.sweep_id == sweep_id, c.done_at.is_not(None))
        done, *counts = self._session.execute(
            select(*(func.coalesce(func.sum(column), 0) for column in (c.size, *(getattr(c, name) for name in COUNTS)))).where(of_sweep)
        ).one()
        versions = self._session.execute(select(c.engine_version).where(of_sweep).distinct().order_by(c.engine_version)).scalars()
        return StoredSweep(
            **row._mapping, done=int(done), counts=dict(zip(COUNTS, map(int, counts), strict=True)),
            engine_versions=tuple(v for v in versions if v),
        )  # fmt: skip

    def under_key(self, key: str) -> StoredSweep | None:
        """The sweep that an idempotency key made, if it is still there."""
        sweep_id = self._session.execute(select(SweepRow.id).where(SweepRow.idempotency_key == key)).scalar()
        return None if sweep_id is None else self.get(sweep_id)

    def results_after(self, sweep_id: str, number: int) -> tuple[int, bytes] | None:
        """The next chunk that is done behind a number, with its results; None where there is none. Raises ``NotFoundError``."""
        c = SweepChunkRow
        row = self._session.execute(
            select(c.number, c.results).where(c.sweep_id == sweep_id, c.number > number, c.done_at.is_not(None)).order_by(c.number).limit(1)
        ).first()
        if row is None and self._session.get(SweepRow, sweep_id) is None:
            raise _unknown(sweep_id)
        return None if row is None else (row.number, row.results)

    def cancel(self, sweep_id: str, edit_token_hash: str, now: datetime) -> bool:
        """Do no more of a sweep; one that is finished stays as it is. False where the token is another one. Raises ``NotFoundError``."""
        if not self._may_change(sweep_id, edit_token_hash):
            return False
        here = update(SweepRow).where(SweepRow.id == sweep_id, SweepRow.state.in_(UNFINISHED))
        self._session.execute(here.values(state="cancelled", finished_at=now))
        return True

    def delete(self, sweep_id: str, edit_token_hash: str) -> bool:
        """Delete a sweep with its results; False where the token is another one. Raises ``NotFoundError``."""
        if not self._may_change(sweep_id, edit_token_hash):
            return False
        self._session.execute(delete(SweepRow).where(SweepRow.id == sweep_id))
        return True

    def delete_finished(self, before: datetime) -> int:
        """Delete sweeps that were finished before a moment, and say how many."""
        return self._changed(delete(SweepRow).where(SweepRow.finished_at < before))

    def free_chunks(self, now: datetime, limit: int | None = None) -> list[ChunkKey]:
        """Chunks that nobody works on: first chunks before later ones, and of those the oldest sweep's before the others'."""
        c = SweepChunkRow
        query = _waiting(select(c.sweep_id, c.number)).where(_not_leased(now)).order_by(c.number, SweepRow.created_at, c.sweep_id)
        return [ChunkKey(row.sweep_id, row.number) for row in self._session.execute(query.limit(limit))]

    def claim(self, key: ChunkKey, now: datetime, until: datetime) -> ClaimedChunk | None:
        """Take a chunk; None where it is done, cancelled, gone, or somebody else's at the moment."""
        sweep = self._locked(key.sweep_id)
        if sweep is None:
            return None
        c = SweepChunkRow
        row = self._session.execute(
            update(c).where(_is(key), c.done_at.is_(None), _not_leased(now)).values(leased_until=until).returning(c.first, c.requests)
        ).first()
        if row is None:
            return None
        self._session.execute(update(SweepRow).where(SweepRow.id == key.sweep_id, SweepRow.state == "queued").values(state="running"))
        return ClaimedChunk(key=key, first=row.first, detail=sweep.detail, axes=sweep.axes, requests=row.requests)

    def renew(self, key: ChunkKey, until: datetime | None) -> bool:
        """Keep a chunk for longer, or give it back with None; False where nobody wants it any more."""
        if self._locked(key.sweep_id) is None:
            return False
        return self._changed(update(SweepChunkRow).where(_is(key), SweepChunkRow.done_at.is_(None)).values(leased_until=until)) == 1

    def finish(self, key: ChunkKey, result: ChunkResult, now: datetime) -> bool:
        """Write a chunk's results, and that the sweep is done where this was the last; False where they are not wanted or there already."""
        if self._locked(key.sweep_id) is None:
            return False
        counts = dict(zip(COUNTS, result.counts, strict=True))
        written = {"results": result.results, "engine_version": result.engine_version, "done_at": now, "leased_until": None, **counts}
        if not self._changed(update(SweepChunkRow).where(_is(key), SweepChunkRow.done_at.is_(None)).values(**written)):
            return False
        rest = select(SweepChunkRow.number).where(SweepChunkRow.sweep_id == key.sweep_id, SweepChunkRow.done_at.is_(None)).limit(1)
        if self._session.execute(rest).first() is None:
            self._session.execute(update(SweepRow).where(SweepRow.id == key.sweep_id).values(state="done", finished_at=now))
        return True

    def _locked(self, sweep_id: str) -> Any:
        """Detail and axes of an unfinished sweep, which stays as it is until the transaction ends; None where it is not one."""
        here = select(SweepRow.detail, SweepRow.axes).where(SweepRow.id == sweep_id, SweepRow.state.in_(UNFINISHED))
        return self._session.execute(here.with_for_update()).first()

    def _may_change(self, sweep_id: str, edit_token_hash: str) -> bool:
        wanted = select(SweepRow.edit_token_hash).where(SweepRow.id == sweep_id).with_for_update()
        stored = None if "\0" in sweep_id else self._session.execute(wanted).scalar()
        if stored is None:
            raise _unknown(sweep_id)
        return hmac.compare_digest(stored, edit_token_hash)

    def _changed(self, statement: Any) -> int:
        return cast(CursorResult[Any], self._session.execute(statement)).rowcount


def _is(key: ChunkKey) -> ColumnElement[bool]:
    return and_(SweepChunkRow.sweep_id == key.sweep_id, SweepChunkRow.number == key.number)


def _not_leased(now: datetime) -> ColumnElement[bool]:
    return or_(SweepChunkRow.leased_until.is_(None), SweepChunkRow.leased_until < now)


def _waiting(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """Of chunks, those that are not done and wanted."""
    here = query.join_from(SweepChunkRow, SweepRow, SweepRow.id == SweepChunkRow.sweep_id)
    return here.where(SweepChunkRow.done_at.is_(None), SweepRow.state.in_(UNFINISHED))


def _unknown(sweep_id: str) -> NotFoundError:
    return NotFoundError(f"there is no sweep {sweep_id[:40]!r}; it may have been deleted, or kept for as long as sweeps are")
