"""Connections and transactions: one engine per process, one commit per request."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from app.domain.errors import UnavailableError

_BEGIN_OPTION = "sqlite_begin"
_WAL_WAIT_S = 5
_SQLITE_OUTAGES = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions:
    """Limits of a database connection.

    Attributes:
        connect_timeout_s: longest wait for a connection.
        statement_timeout_s: longest run of a statement; on SQLite the longest wait for the write lock.
        pool_size: connections kept open to PostgreSQL.
    """

    connect_timeout_s: int = 5
    statement_timeout_s: int = 10
    pool_size: int = 10


def make_engine(url: str, options: DatabaseOptions = DatabaseOptions()) -> Engine:
    """Engine for SQLite or PostgreSQL with time limits on everything that can wait."""
    shared: dict[str, Any] = {"json_serializer": _dump_json, "json_deserializer": orjson.loads, "hide_parameters": True}
    if make_url(url).get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": options.statement_timeout_s}, **shared)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_size=options.pool_size,
        pool_timeout=options.connect_timeout_s,
        connect_args={
            "connect_timeout": options.connect_timeout_s,
            "options": f"-c statement_timeout={options.statement_timeout_s * 1000} -c timezone=UTC",
        },
        **shared,
    )


def for_writing(engine: Engine) -> Engine:
    """The same engine, whose transactions on SQLite take the write lock at their start.

    A transaction that reads first and writes later would fail at once, without waiting, if another wrote in between.
    """
    return engine.execution_options(**{_BEGIN_OPTION: "BEGIN IMMEDIATE"})


@contextmanager
def reported_outages() -> Iterator[None]:
    """Turn the driver's "cannot connect", "locked" and "timed out" into ``UnavailableError``."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        if not _is_outage(error):
            raise
        raise UnavailableError("the database does not answer at the moment; try again in a few seconds") from error


class Database:
    """The database of one process."""

    def __init__(self, url: str, options: DatabaseOptions = DatabaseOptions()) -> None:
        self.url = url
        self.engine = make_engine(url, options)
        self._write_engine = for_writing(self.engine)

    @contextmanager
    def session(self, *, write: bool = False) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises.

        Raises:
            UnavailableError: the database cannot be reached, is locked for too long or a statement timed out.
        """
        bind = self._write_engine if write else self.engine
        with reported_outages(), Session(bind, expire_on_commit=False) as session, session.begin():
            yield session

    def ping(self) -> None:
        """Ask the database for a sign of life; raises ``UnavailableError`` without one."""
        with self.session() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _is_outage(error: Exception) -> bool:
    """Whether trying again can help; SQLite files mistakes in SQL under the same exception as a locked file."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return code is None or code & 0xFF in _SQLITE_OUTAGES


def _dump_json(value: object) -> str:
    return orjson.dumps(value).decode()


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver then begins nothing on its own, and DDL is transactional too
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    _switch_to_wal(connection)


def _switch_to_wal(connection: Any) -> None:
    """Let readers go on while one writes. The file remembers it; the first switch does not wait by itself."""
    deadline = time.monotonic() + _WAL_WAIT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN_OPTION, "BEGIN"))
