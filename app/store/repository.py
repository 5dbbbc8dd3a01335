"""Saved plans in the database: add, get, list, delete. Returns frozen records, never mapped rows."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, delete, insert, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.domain.errors import NotFoundError
from app.store.cursor import Cursor
from app.store.tables import IdempotencyRow, PlanRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """What a list shows of a saved plan."""

    id: str
    created_at: datetime
    name: str
    note: str
    engine_version: str
    model_name: str
    gpu_name: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan(PlanSummary):
    """A saved plan with its two documents."""

    request: Mapping[str, Any]
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan(StoredPlan):
    """A plan about to be saved; only the hash of its edit token is ever stored."""

    edit_token_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRecord:
    """What an ``Idempotency-Key`` stands for."""

    key: str
    request_hash: str
    plan_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFilter:
    """Which saved plans to list.

    Attributes:
        words: each must occur in the name, the model or the GPUs, in any case.
        model_name, gpu_name: exact matches, as stored.
    """

    words: tuple[str, ...] = ()
    model_name: str | None = None
    gpu_name: str | None = None


_SUMMARY = tuple(getattr(PlanRow, name) for name in PlanSummary.__dataclass_fields__)
_STORED = tuple(getattr(PlanRow, name) for name in StoredPlan.__dataclass_fields__)


class PlanRepository:
    """Saved plans, seen through one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, plan: NewPlan) -> None:
        """Insert a plan."""
        values = {name: getattr(plan, name) for name in NewPlan.__dataclass_fields__}
        self._session.execute(insert(PlanRow).values(**values, search_text=_search_text(plan)))

    def claim(self, record: IdempotencyRecord, created_at: datetime) -> bool:
        """Tie an idempotency key to a plan; False where the key is taken.

        Waits for a transaction that is claiming the same key at the moment: the loser sees False only once the
        winner's plan can be read.
        """
        dialect = self._session.get_bind().dialect.name
        insert_if_new = postgresql.insert if dialect == "postgresql" else sqlite.insert
        statement = (
            insert_if_new(IdempotencyRow)
            .values(key=record.key, request_hash=record.request_hash, plan_id=record.plan_id, created_at=created_at)
            .on_conflict_do_nothing(index_elements=["key"])
            .returning(IdempotencyRow.key)
        )
        return self._session.execute(statement).first() is not None

    def claimed(self, key: str) -> IdempotencyRecord | None:
        """What a key stands for, if anything."""
        row = self._session.get(IdempotencyRow, key)
        if row is None:
            return None
        return IdempotencyRecord(key=row.key, request_hash=row.request_hash, plan_id=row.plan_id)

    def get(self, plan_id: str) -> StoredPlan:
        """Read a plan; raises ``NotFoundError``."""
        row = self._session.execute(select(*_STORED).where(PlanRow.id == plan_id)).first()
        if row is None:
            raise _unknown(plan_id)
        return StoredPlan(**_named(row))

    def list(self, wanted: PlanFilter, *, after: Cursor | None, limit: int) -> tuple[PlanSummary, ...]:
        """Plans from the newest to the oldest, at most ``limit``, those older than ``after``."""
        query = select(*_SUMMARY).order_by(PlanRow.created_at.desc(), PlanRow.id.desc()).limit(limit)
        if after is not None:
            query = query.where(tuple_(PlanRow.created_at, PlanRow.id) < tuple_(after.created_at, after.id))
        rows = self._session.execute(_filtered(query, wanted)).all()
        return tuple(PlanSummary(**_named(row)) for row in rows)

    def delete(self, plan_id: str, edit_token_hash: str) -> bool:
        """Delete a plan; False where the token is another one. Raises ``NotFoundError``."""
        stored = self._session.execute(select(PlanRow.edit_token_hash).where(PlanRow.id == plan_id)).scalar()
        if stored is None:
            raise _unknown(plan_id)
        if not hmac.compare_digest(stored, edit_token_hash):
            return False
        self._session.execute(delete(PlanRow).where(PlanRow.id == plan_id))
        return True


def _filtered(query: Select[Any], wanted: PlanFilter) -> Select[Any]:
    if wanted.model_name is not None:
        query = query.where(PlanRow.model_name == wanted.model_name)
    if wanted.gpu_name is not None:
        query = query.where(PlanRow.gpu_name == wanted.gpu_name)
    for word in wanted.words:
        query = query.where(PlanRow.search_text.contains(word.casefold(), autoescape=True))
    return query


def _search_text(plan: PlanSummary) -> str:
    return "\n".join((plan.name, plan.model_name, plan.gpu_name)).casefold()


def _named(row: Row[Any]) -> dict[str, Any]:
    return dict(row._mapping)


def _unknown(plan_id: str) -> NotFoundError:
    return NotFoundError(f"there is no saved plan {plan_id[:40]!r}; it may have been deleted")
