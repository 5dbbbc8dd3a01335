"""Whether a key may enter: asked of the database now and then, remembered in between and while it is away."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.domain.errors import ShardplanError, UnavailableError
from app.services.keys import belongs, ended, key_id_of
from app.store.keys import KeyRepository, StoredKey
from app.store.session import Database

FRESH_S, USABLE_S = 60.0, 900.0
"""How long a key goes unasked, which is how long a revoked one may go on, and how long it works without a database."""
_MAX_REMEMBERED = 1000
_TOUCH = timedelta(hours=1)
_WRONG = "this key is not known here; ask the operator of this service for one"

log = logging.getLogger(__name__)


class UnauthorizedError(ShardplanError):
    """No key was sent, or one that does not open anything."""

    code = "unauthorized"
    title = "A key is needed"


@dataclass(frozen=True, slots=True)
class _Seen:
    key: StoredKey
    at: float


class KeyCheck:
    """Keys of one process, at most a thousand remembered; the longest unused are forgotten first.

    Only keys that exist are remembered, never texts that were tried.
    """

    def __init__(
        self, database: Database, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database, self._clock, self._now = database, clock, now
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._away_until = -float("inf")
        self._notes = ThreadPoolExecutor(1, thread_name_prefix="key-notes")

    def remembered(self, text: str) -> StoredKey | None:
        """The key where no database needs to be asked, None where one does.

        Raises:
            UnauthorizedError: the text is no key, or a known key has another secret or has ended.
        """
        return self._remembered(text, FRESH_S)

    def ask(self, text: str) -> StoredKey:
        """The key, asked of the database; the one remembered where that does not answer.

        Raises:
            UnauthorizedError: as ``remembered``, or there is no such key.
            UnavailableError: the database does not answer, and the key was not seen lately.
        """
        asked_at = self._clock()
        if asked_at < self._away_until:
            return self.without_database(text)
        try:
            with self._database.session() as session:
                found = KeyRepository(session).get(_id_of(text))
        except UnavailableError:
            self.away()
            return self.without_database(text)
        if found is None:
            with self._lock:
                self._seen.pop(_id_of(text), None)
            raise UnauthorizedError(_WRONG)
        self._remember(found, asked_at)
        key = self._opened(text, found)
        if key.last_used_at is None or key.last_used_at < self._now() - _TOUCH:
            self._notes.submit(self._note_use, key.id)
        return key

    def without_database(self, text: str) -> StoredKey:
        """The key as it was seen lately.

        Raises:
            UnauthorizedError: as ``remembered``.
            UnavailableError: it was not.
        """
        key = self._remembered(text, USABLE_S)
        if key is None:
            raise UnavailableError(
                "this key cannot be checked, since the database does not answer at the moment; try again in a few seconds"
            )
        return key

    def away(self, pause_s: float = 1.0) -> None:
        """Ask nothing for a while: the database did not answer."""
        self._away_until = self._clock() + pause_s

    def close(self) -> None:
        """End the thread that notes uses."""
        self._notes.shutdown(cancel_futures=True)

    def _remembered(self, text: str, longest_s: float) -> StoredKey | None:
        key_id = _id_of(text)
        with self._lock:
            seen = self._seen.get(key_id)
            if seen is not None:
                self._seen.move_to_end(key_id)
        if seen is None or self._clock() - seen.at >= longest_s:
            return None
        return self._opened(text, seen.key)

    def _remember(self, key: StoredKey, at: float) -> None:
        with self._lock:
            self._seen[key.id] = _Seen(key, at)
            self._seen.move_to_end(key.id)
            while len(self._seen) > _MAX_REMEMBERED:
                self._seen.popitem(last=False)

    def _opened(self, text: str, key: StoredKey) -> StoredKey:
        if not belongs(text, key):
            raise UnauthorizedError(_WRONG)
        if (end := ended(key, self._now())) is not None:
            raise UnauthorizedError(f"the key {key.id} {end}; ask the operator of this service for another")
        return key

    def _note_use(self, key_id: str) -> None:
        """In a thread of its own: a request waits for no lock, and fails for none."""
        now = self._now()
        try:
            with self._database.session(write=True) as session:
                KeyRepository(session).touch(key_id, now, unless_since=now - _TOUCH)
        except UnavailableError as error:
            log.info("the use of key %s was not noted: %s", key_id, error.detail)


def _id_of(text: str) -> str:
    key_id = key_id_of(text)
    if key_id is None:
        raise UnauthorizedError(_WRONG)
    return key_id
