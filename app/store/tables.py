"""Tables of the database. ``migrations/`` builds the same schema; a test compares the two."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "pk": "pk_%(table_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC: ``timestamptz`` on PostgreSQL, and on SQLite, which knows no zones, the same without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn to UTC, and drop the zone where the database would drop it silently."""
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the moment back with its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of the mapped classes."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: JSON, list[str]: JSON, bytes: LargeBinary}  # noqa: RUF012 (SQLAlchemy's)


class PlanRow(Base):
    """One saved plan; inserted and deleted, never updated: a trigger of migration 0002 refuses that.

    The documents are ``json`` on both databases, not ``jsonb`` (ADR 9): nothing queries inside them, and jsonb would reorder
    keys, turn 7.5e9 into an integer and refuse U+0000, while a saved plan is given back as it was saved.
    They come last so that a list reads the short columns without touching them.
    """

    __tablename__ = "plans"
    __table_args__ = (
        CheckConstraint("verdict IN ('fits', 'tight', 'does_not_fit')", name="verdict"),
        Index(None, "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    created_at: Mapped[datetime]
    name: Mapped[str] = mapped_column(String(200))
    note: Mapped[str] = mapped_column(Text)
    engine_version: Mapped[str] = mapped_column(String(32))
    model_name: Mapped[str] = mapped_column(String(300))
    gpu_name: Mapped[str] = mapped_column(String(300))
    verdict: Mapped[str] = mapped_column(String(16))
    search_text: Mapped[str] = mapped_column(Text)
    """Name, model and GPUs, a line each, case-folded, so that both databases search alike in every script."""
    edit_token_hash: Mapped[str] = mapped_column(String(64))
    request: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any]]


class IdempotencyRow(Base):
    """Which plan a client's ``Idempotency-Key`` made, and of which body."""

    __tablename__ = "idempotency"

    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]


class SweepRow(Base):
    """Many planning requests as one job. It is kept for some days only, and is no part of an export.

    ``axes`` are the paths that a grid varies, in order; empty for a list of requests. ``finished_at`` is when it was done or cancelled.
    """

    __tablename__ = "sweeps"
    __table_args__ = (
        CheckConstraint("state IN ('queued', 'running', 'done', 'cancelled')", name="state"),
        CheckConstraint("detail IN ('figures', 'plan')", name="detail"),
        Index(None, "state", "created_at"),
        Index(None, "finished_at"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    state: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(200))
    detail: Mapped[str] = mapped_column(String(16))
    total: Mapped[int]
    axes: Mapped[list[str]]
    edit_token_hash: Mapped[str] = mapped_column(String(64))
    idempotency_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    request_hash: Mapped[str] = mapped_column(String(64))


class SweepChunkRow(Base):
    """A hundred or so requests of a sweep in a row, and their results: written once, by whoever is first.

    Both are JSON Lines, compressed. Until ``leased_until`` somebody works on it; the counts are of its results.
    """

    __tablename__ = "sweep_chunks"

    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    first: Mapped[int]
    size: Mapped[int]
    leased_until: Mapped[datetime | None]
    done_at: Mapped[datetime | None]
    engine_version: Mapped[str | None] = mapped_column(String(32))
    fits: Mapped[int]
    tight: Mapped[int]
    does_not_fit: Mapped[int]
    failed: Mapped[int]
    requests: Mapped[bytes]
    results: Mapped[bytes | None]


class ApiKeyRow(Base):
    """A key that lets a client in where keys are required: all of it but the secret, of which there is a hash.

    ``owner`` is the id of the first of a line of keys, each made from the one before by rotation: it stands for the client.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    owner: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(200))
    hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(String(200))
    """Words with spaces between them."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """To the hour: it is not written for every request."""


class MeasurementRow(Base):
    """What one run of a saved plan really took; inserted and deleted, and deleted with its plan.

    ``details`` has what is only shown: other counters, moments, versions. ``predicted`` is what the plan said of itself, by how exact it
    is, so that calibrating reads no plans. ``owner`` is the client that sent it, empty where there are no keys.
    """

    __tablename__ = "measurements"
    __table_args__ = (
        CheckConstraint("counter IN ('allocated', 'reserved', 'device')", name="counter"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    counter: Mapped[str | None] = mapped_column(String(16))
    peak_bytes: Mapped[int | None] = mapped_column(BigInteger)
    step_s: Mapped[float | None] = mapped_column(Double)
    tokens_per_s: Mapped[float | None] = mapped_column(Double)
    oom: Mapped[bool]
    note: Mapped[str] = mapped_column(Text)
    owner: Mapped[str] = mapped_column(String(16))
    engine_version: Mapped[str] = mapped_column(String(32))
    """Of the engine that predicted."""
    idempotency_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    details: Mapped[dict[str, Any]]
    predicted: Mapped[dict[str, Any]]
