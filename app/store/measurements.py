"""Measurements of saved plans in the database: add, list, delete. Returns frozen records, never mapped rows."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.domain.errors import NotFoundError
from app.store.repository import unknown_plan
from app.store.tables import MeasurementRow, PlanRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMeasurement:
    """What one run really took; the fields are those of ``MeasurementRow``."""

    id: str
    plan_id: str
    created_at: datetime
    counter: str | None
    peak_bytes: int | None
    step_s: float | None
    tokens_per_s: float | None
    oom: bool
    note: str
    owner: str
    engine_version: str
    idempotency_key: str | None
    request_hash: str
    details: Mapping[str, Any]
    predicted: Mapping[str, Any]


Stamp = tuple[int, datetime | None]
"""How many measurements there are, and when the newest came: with neither changed, nothing was added or deleted."""

_FIELDS = tuple(StoredMeasurement.__dataclass_fields__)
_COLUMNS = tuple(getattr(MeasurementRow, name) for name in _FIELDS)


class MeasurementRepository:
    """Measurements, seen through one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, measured: StoredMeasurement) -> bool:
        """Insert a measurement; False where its idempotency key is taken, whose owner's row can then be read."""
        dialect = self._session.get_bind().dialect.name
        values = {name: getattr(measured, name) for name in _FIELDS}
        if measured.idempotency_key is None:
            self._session.execute(insert(MeasurementRow).values(**values))
            return True
        insert_if_new = postgresql.insert if dialect == "postgresql" else sqlite.insert
        statement = insert_if_new(MeasurementRow).values(**values).on_conflict_do_nothing(index_elements=["idempotency_key"])
        return self._session.execute(statement.returning(MeasurementRow.id)).first() is not None

    def claimed(self, key: str) -> StoredMeasurement | None:
        """What an idempotency key made, if anything."""
        row = self._session.execute(select(*_COLUMNS).where(MeasurementRow.idempotency_key == key)).first()
        return None if row is None else StoredMeasurement(**dict(row._mapping))

    def count(self, plan_id: str) -> int:
        """How many a plan has."""
        return self._session.execute(select(func.count()).where(MeasurementRow.plan_id == plan_id)).scalar_one()

    def of_plan(self, plan_id: str) -> tuple[StoredMeasurement, ...]:
        """Those of one plan, the newest first."""
        query = select(*_COLUMNS).where(MeasurementRow.plan_id == plan_id)
        rows = self._session.execute(query.order_by(MeasurementRow.created_at.desc(), MeasurementRow.id)).all()
        return tuple(StoredMeasurement(**dict(row._mapping)) for row in rows)

    def newest(self, limit: int) -> tuple[StoredMeasurement, ...]:
        """Those of all plans, the newest first."""
        query = select(*_COLUMNS).order_by(MeasurementRow.created_at.desc(), MeasurementRow.id).limit(limit)
        return tuple(StoredMeasurement(**dict(row._mapping)) for row in self._session.execute(query).all())

    def stamp(self) -> Stamp:
        """What changes whenever a measurement is added or deleted."""
        count, newest = self._session.execute(select(func.count(), func.max(MeasurementRow.created_at))).one()
        return count, newest

    def delete(self, plan_id: str, measurement_id: str, edit_token_hash: str) -> bool:
        """Delete one; False where the token is not its plan's. Raises ``NotFoundError`` where there is no such plan or measurement."""
        odd = "\0" in plan_id + measurement_id
        query = select(PlanRow.edit_token_hash).where(PlanRow.id == plan_id)
        stored = None if odd else self._session.execute(query).scalar()
        if stored is None:
            raise unknown_plan(plan_id)
        if not hmac.compare_digest(stored, edit_token_hash):
            return False
        wanted = (MeasurementRow.plan_id == plan_id, MeasurementRow.id == measurement_id)
        if self._session.execute(delete(MeasurementRow).where(*wanted).returning(MeasurementRow.id)).first() is None:
            raise NotFoundError(f"this plan has no measurement {measurement_id[:40]!r}; it may have been deleted")
        return True
