"""Saved plans in the database: add, get, list, delete. Returns frozen records, never mapped rows."""

from __future__ import annotations

import hmac
import re
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
    """Which saved plans to list: every word given must occur, in any case and order.

    Attributes:
        text: words looked for in name, model and GPUs alike.
        name, model, gpu: words looked for in that one.
    """

    text: str | None = None
    name: str | None = None
    model: str | None = None
    gpu: str | None = None


_SUMMARY = tuple(getattr(PlanRow, name) for name in PlanSummary.__dataclass_fields__)
_STORED = tuple(getattr(PlanRow, name) for name in StoredPlan.__dataclass_fields__)


class PlanRepository:
    """Saved plans, seen through one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, plan: NewPlan) -> None:
        """Insert a plan."""
        values = {name: getattr(plan, name) for name in NewPlan.__dataclass_fields__}
        self._session.execute(insert(PlanRow).values(**values, search_text=search_text(plan.name, plan.model_name, plan.gpu_name)))

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
        row = None if "\0" in plan_id else self._session.execute(select(*_STORED).where(PlanRow.id == plan_id)).first()
        if row is None:  # PostgreSQL takes no U+0000, not even to look for it
            raise unknown_plan(plan_id)
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
        wanted = select(PlanRow.edit_token_hash).where(PlanRow.id == plan_id)
        stored = None if "\0" in plan_id else self._session.execute(wanted).scalar()
        if stored is None:
            raise unknown_plan(plan_id)
        if not hmac.compare_digest(stored, edit_token_hash):
            return False
        self._session.execute(delete(PlanRow).where(PlanRow.id == plan_id))
        return True


def _filtered(query: Select[Any], wanted: PlanFilter) -> Select[Any]:
    for words, lines_before, lines_after in (
        (wanted.text, 0, 0),
        (wanted.name, 0, 2),
        (wanted.model, 1, 1),
        (wanted.gpu, 2, 0),
    ):
        for word in (words or "").casefold().split():
            pattern = "%\n" * lines_before + f"%{_literal(word)}%" + "\n%" * lines_after
            query = query.where(PlanRow.search_text.like(pattern, escape="\\"))
    return query


def search_text(*fields: str) -> str:
    """Three lines: name, model, GPUs; the number of line ends around a word says which one it is in."""
    return "\n".join(" ".join(field.split()) for field in fields).casefold()


def _literal(word: str) -> str:
    """A word for LIKE, whose own signs are ordinary characters in it."""
    return re.sub(r"([\\%_])", r"\\\1", word.replace("\0", ""))


def _named(row: Row[Any]) -> dict[str, Any]:
    return dict(row._mapping)


def unknown_plan(plan_id: str) -> NotFoundError:
    """The error for an id that no plan has."""
    return NotFoundError(f"there is no saved plan {plan_id[:40]!r}; it may have been deleted")
