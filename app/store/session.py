"""Connections and transactions: one engine per process, one commit per request."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import orjson
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from app.store.outages import Absence, NotMigratedError, reported_outages

T = TypeVar("T")
_BEGIN_OPTION = "sqlite_begin"
_WAL_WAIT_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions:
    """Limits of a database connection.

    Attributes:
        connect_timeout_s: longest wait for a connection, be it a new one or a free one of the pool.
        statement_timeout_s: longest run of a statement; on SQLite the longest wait for the write lock.
        idle_timeout_s: longest silence inside a transaction, and of a PostgreSQL that no longer acknowledges what is sent.
        pool_size: connections kept open.
        max_overflow: connections opened beyond those while all are in use.
    """

    connect_timeout_s: int = 5
    statement_timeout_s: int = 10
    idle_timeout_s: int = 30
    pool_size: int = 10
    max_overflow: int = 10


def make_engine(url: str, options: DatabaseOptions = DatabaseOptions()) -> Engine:
    """Engine for SQLite or PostgreSQL with time limits on everything that can wait."""
    shared: dict[str, Any] = {
        "json_serializer": _dump_json, "json_deserializer": orjson.loads, "hide_parameters": True,
        "pool_size": options.pool_size, "max_overflow": options.max_overflow, "pool_timeout": options.connect_timeout_s,
    }  # fmt: skip
    if make_url(url).get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": options.statement_timeout_s}, poolclass=QueuePool, **shared)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(url, pool_pre_ping=True, connect_args=postgres_arguments(options), **shared)


def postgres_arguments(options: DatabaseOptions) -> dict[str, Any]:
    """What libpq is told: a server that vanished without a word is noticed by keepalives and by unacknowledged data."""
    idle_ms, statement_ms = options.idle_timeout_s * 1000, options.statement_timeout_s * 1000
    server = {"statement_timeout": statement_ms, "idle_in_transaction_session_timeout": idle_ms, "timezone": "UTC"}
    return {
        "connect_timeout": options.connect_timeout_s,
        "keepalives": 1, "keepalives_idle": options.idle_timeout_s, "keepalives_interval": 5, "keepalives_count": 3,
        "tcp_user_timeout": idle_ms,
        "options": " ".join(f"-c {name}={value}" for name, value in server.items()),
    }  # fmt: skip


def for_writing(engine: Engine) -> Engine:
    """The same engine, whose transactions on SQLite take the write lock at their start.

    A transaction that reads first and writes later would fail at once, without waiting, if another wrote in between.
    """
    return engine.execution_options(**{_BEGIN_OPTION: "BEGIN IMMEDIATE"})


class Database:
    """The database of one process.

    Attributes:
        on_not_migrated: called when a transaction met tables that are not there, by whoever can make them.
    """

    def __init__(self, url: str, options: DatabaseOptions = DatabaseOptions()) -> None:
        self.url = url
        self.engine = make_engine(url, options)
        self._write_engine = for_writing(self.engine)
        self._absence = Absence()
        self.on_not_migrated: Callable[[], None] = lambda: None

    @contextmanager
    def session(self, *, write: bool = False) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises.

        Raises:
            UnavailableError: the database cannot be reached, is locked for too long, is full, lacks its tables, or a
                statement timed out.
        """
        bind = self._write_engine if write else self.engine
        self._absence.check()
        try:
            with self._absence.noticed(), reported_outages(), Session(bind, expire_on_commit=False) as session, session.begin():
                yield session
        except NotMigratedError:
            self.on_not_migrated()
            raise

    def inspect(self, look: Callable[[Connection], T]) -> T:
        """What a look at the database finds; raises ``UnavailableError`` where it does not answer."""
        with self._absence.noticed(), reported_outages(), self.engine.connect() as connection:
            return look(connection)

    def ping(self) -> None:
        """Ask the database for a sign of life; raises ``UnavailableError`` without one."""
        with self.session() as session:
            session.execute(text("SELECT 1"))

    def connections_in_use(self) -> int:
        """Connections that a transaction holds at the moment."""
        return cast(QueuePool, self.engine.pool).checkedout()

    def connections_open(self) -> int:
        """Connections to the database, in use or kept for the next."""
        pool = cast(QueuePool, self.engine.pool)
        return pool.checkedout() + pool.checkedin()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


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
