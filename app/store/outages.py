"""What a driver's exception means to a client: try again, wait for a migration, or a mistake of ours."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import InterfaceError as DriverInterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.domain.errors import UnavailableError

_SQLITE_OUTAGES = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
    )
)
_SQLITE_NO_TABLE = re.compile(r"no such (table|column)|has no column named")
_POSTGRES_NO_TABLE = frozenset(("42P01", "42703", "3F000"))
"""Undefined table, column and schema."""
_POSTGRES_OUTAGES = frozenset(("25P03", "25006"))
"""Ended as idle in its transaction, and read-only as a standby is; the driver files neither as operational."""
_POSTGRES_FULL = "53100"
_NO_ANSWER = "the database does not answer at the moment; try again in a few seconds"


class NotMigratedError(UnavailableError):
    """The database answers, but the tables this version needs are not there."""


class DatabaseFullError(UnavailableError):
    """The database answers, but has no room to write."""


class DatabaseAwayError(UnavailableError):
    """No connection can be made."""


class Absence:
    """Remembers that a database is away, so that one request a second waits for it and the others do not.

    Without that, requests to save would wait out the connect timeout on every thread there is, and planning with them.
    """

    def __init__(self, *, probe_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe_s, self._clock = probe_s, clock
        self._lock = threading.Lock()
        self._probe_at: float | None = None

    def check(self) -> None:
        """Let the caller try; raises ``DatabaseAwayError`` where the last try failed less than ``probe_s`` ago."""
        with self._lock:
            if self._probe_at is None:
                return
            if self._clock() < self._probe_at:
                raise DatabaseAwayError(_NO_ANSWER)
            self._probe_at = self._clock() + self._probe_s

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Learn from a try: no connection, or an answer of whatever kind."""
        try:
            yield
        except DatabaseAwayError:
            with self._lock:
                self._probe_at = self._clock() + self._probe_s
            raise
        except UnavailableError:  # a full pool says nothing about the database
            raise
        except Exception:
            self._probe_at = None
            raise
        self._probe_at = None


@contextmanager
def reported_outages() -> Iterator[None]:
    """Turn a driver's exception that is no mistake of ours into an ``UnavailableError``.

    Raises:
        NotMigratedError: tables or columns are missing.
        DatabaseFullError: the disk is full.
        DatabaseAwayError: no connection.
        UnavailableError: none free in the pool, locked, timed out, or read-only.
    """
    try:
        yield
    except PoolTimeoutError as error:
        raise UnavailableError("every connection to the database is in use; try again in a few seconds") from error
    except DBAPIError as error:
        if (outage := _outage(error)) is None:
            raise
        raise outage from error


def _outage(error: DBAPIError) -> UnavailableError | None:
    """The error to answer with where trying again can help; None for mistakes in SQL and broken rules of a table."""
    sqlite_code = getattr(error.orig, "sqlite_errorcode", None)
    state = getattr(error.orig, "sqlstate", None) or ""
    primary = None if sqlite_code is None else sqlite_code & 0xFF
    if state in _POSTGRES_NO_TABLE or (primary == sqlite3.SQLITE_ERROR and _SQLITE_NO_TABLE.search(str(error.orig))):
        return NotMigratedError("the database does not have the tables this version needs; they are made as soon as it can be migrated")
    if state == _POSTGRES_FULL or primary == sqlite3.SQLITE_FULL:
        return DatabaseFullError("the database has no room left, so nothing was saved; its operator must make room")
    operational = isinstance(error, (OperationalError, DriverInterfaceError))
    if state in _POSTGRES_OUTAGES or primary in _SQLITE_OUTAGES or (operational and primary is None):
        return UnavailableError(_NO_ANSWER) if state or primary is not None else DatabaseAwayError(_NO_ANSWER)
    return None
