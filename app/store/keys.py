"""API keys in the database: add, find, list, end. Returns frozen records, never mapped rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Row, func, insert, or_, select, update
from sqlalchemy.orm import Session

from app.store.tables import ApiKeyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key without its secret.

    Attributes:
        id: the part of the key that may be shown.
        owner: the client it stands for, the same for a key and those it was rotated to.
        hash: SHA-256 of the secret.
        scopes: what it may be used for.
        expires_at, revoked_at: when it ends or was ended; None for never.
        last_used_at: to the hour; None for never.
    """

    id: str
    owner: str
    name: str
    hash: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


_COLUMNS = tuple(getattr(ApiKeyRow, name) for name in StoredKey.__dataclass_fields__)


class KeyRepository:
    """API keys, seen through one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, key: StoredKey) -> None:
        """Insert a key."""
        values = {name: getattr(key, name) for name in StoredKey.__dataclass_fields__}
        self._session.execute(insert(ApiKeyRow).values(**values | {"scopes": " ".join(sorted(key.scopes))}))

    def get(self, key_id: str) -> StoredKey | None:
        """The key of an id, if there is one."""
        row = self._session.execute(select(*_COLUMNS).where(ApiKeyRow.id == key_id)).first()
        return None if row is None else _record(row)

    def list(self) -> tuple[StoredKey, ...]:
        """Every key, the oldest first."""
        rows = self._session.execute(select(*_COLUMNS).order_by(ApiKeyRow.created_at, ApiKeyRow.id)).all()
        return tuple(_record(row) for row in rows)

    def expire(self, key_id: str, at: datetime) -> None:
        """Let a key end at a moment, or earlier where it would have ended by then."""
        earlier = func.coalesce(ApiKeyRow.expires_at, at) < at
        self._session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id, ~earlier).values(expires_at=at))

    def revoke(self, key_id: str, at: datetime) -> None:
        """End a key at once; one that was ended before keeps its time."""
        self._session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None)).values(revoked_at=at))

    def touch(self, key_id: str, at: datetime, *, unless_since: datetime) -> None:
        """Note that a key is in use, where the note there is is older."""
        stale = or_(ApiKeyRow.last_used_at.is_(None), ApiKeyRow.last_used_at < unless_since)
        self._session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id, stale).values(last_used_at=at))


def _record(row: Row[tuple[object, ...]]) -> StoredKey:
    values = dict(row._mapping)
    return StoredKey(**values | {"scopes": frozenset(str(values["scopes"]).split())})
