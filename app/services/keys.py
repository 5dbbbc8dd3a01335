"""API keys: make, list, rotate and revoke them. A key is ``shp_<id>_<secret>``; the secret is told once and never kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError
from app.store.keys import KeyRepository, StoredKey
from app.store.session import Database

SCOPES = {
    "plan": "plan, audit and diagnose; the form, the catalogue and this reference",
    "read": "list, read, compare and replan what is saved",
    "write": "save and delete",
    "admin": "read the service's metrics",
}
"""What a key may be used for, each on its own: none of them includes another."""
MAX_NAME = 200
_KEY = re.compile(r"shp_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_LONGEST = timedelta(days=36_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedKey:
    """A new key, with the text that is told this once."""

    key: StoredKey
    text: str


class Keys:
    """The use cases of ``shardplan keys``, over one database."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database, self._now = database, now

    def create(self, name: str, scopes: Iterable[str], *, life: timedelta | None = None) -> IssuedKey:
        """Make a key for a new client.

        Args:
            name: who it is for, in the operator's words.
            scopes: of ``SCOPES``, at least one.
            life: how long it works; None for as long as nobody revokes it.

        Raises:
            InvalidRequestError: no name or one that cannot be shown, no scope or an unknown one, or no time to live.
            UnavailableError: the database does not answer.
        """
        wanted = frozenset(scopes)
        _check(name.strip(), wanted, life)
        issued = _issue(name.strip(), wanted, self._now(), life)
        with self._database.session(write=True) as session:
            KeyRepository(session).add(issued.key)
        return issued

    def list(self) -> tuple[StoredKey, ...]:
        """Every key there is or was, the oldest first."""
        with self._database.session() as session:
            return KeyRepository(session).list()

    def rotate(self, key_id: str, *, grace: timedelta) -> IssuedKey:
        """Make a key that follows another: same client, name, scopes and length of life. The other ends after ``grace``.

        Raises:
            NotFoundError: there is no such key.
            ConflictError: it has ended, so that nobody could be using it.
            UnavailableError: the database does not answer.
        """
        now = self._now()
        if not timedelta() <= grace <= _LONGEST:
            raise InvalidRequestError.at("grace", msg=f"a grace of {grace} is not between 0 and {_LONGEST.days:,} days")
        with self._database.session(write=True) as session:
            repository = KeyRepository(session)
            old = _known(repository, key_id)
            if (end := ended(old, now)) is not None:
                raise ConflictError(f"the key {key_id} {end}; create a new one")
            life = old.expires_at - old.created_at if old.expires_at else None
            issued = _issue(old.name, old.scopes, now, life, owner=old.owner)
            repository.add(issued.key)
            repository.expire(old.id, now + grace)
        return issued

    def revoke(self, key_id: str) -> None:
        """End a key; services notice within a minute.

        Raises:
            NotFoundError: there is no such key.
            UnavailableError: the database does not answer.
        """
        with self._database.session(write=True) as session:
            repository = KeyRepository(session)
            repository.revoke(_known(repository, key_id).id, self._now())


def key_id_of(text: str) -> str | None:
    """The id in a key; None where the text is no key."""
    found = _KEY.fullmatch(text)
    return found[1] if found else None


def belongs(text: str, key: StoredKey) -> bool:
    """Whether a text is this very key. A secret of 256 random bits needs no slow hash."""
    return hmac.compare_digest(_hash(text), key.hash)


def ended(key: StoredKey, now: datetime) -> str | None:
    """How a key ended, in words; None while it works."""
    if key.revoked_at is not None:
        return f"was revoked at {key.revoked_at:%Y-%m-%d %H:%M} UTC"
    if key.expires_at is not None and key.expires_at <= now:
        return f"expired at {key.expires_at:%Y-%m-%d %H:%M} UTC"
    return None


def _issue(name: str, scopes: frozenset[str], now: datetime, life: timedelta | None, *, owner: str = "") -> IssuedKey:
    key_id = secrets.token_hex(6)
    text = f"shp_{key_id}_{secrets.token_urlsafe(32)}"
    key = StoredKey(
        id=key_id,
        owner=owner or key_id,
        name=name,
        hash=_hash(text),
        scopes=scopes,
        created_at=now,
        expires_at=now + life if life else None,
    )
    return IssuedKey(key=key, text=text)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _known(repository: KeyRepository, key_id: str) -> StoredKey:
    found = repository.get(key_id) if key_id.isalnum() else None
    if found is None:
        raise NotFoundError(f"there is no key {key_id[:40]!r}; `shardplan keys list` shows the ids")
    return found


def _check(name: str, scopes: frozenset[str], life: timedelta | None) -> None:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidRequestError.at("name", msg=f"the name {name[:40]!r} is not 1 to {MAX_NAME} printable characters")
    if unknown := sorted(scopes - set(SCOPES)):
        raise InvalidRequestError.at("scope", msg=f"there is no scope {', '.join(unknown)}", hint=f"use {', '.join(SCOPES)}")
    if not scopes:
        raise InvalidRequestError.at("scope", msg="a key without a scope opens nothing", hint=f"use some of {', '.join(SCOPES)}")
    if life is not None and not timedelta() < life <= _LONGEST:
        raise InvalidRequestError.at("expires", msg=f"a life of {life} is not above 0 and up to {_LONGEST.days:,} days")
