"""Which exceptions of the drivers are outages, and that nothing waits without a limit."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from app.domain.errors import NotFoundError, UnavailableError
from app.main import create_app
from app.settings import AppSettings
from app.store.outages import Absence, DatabaseAwayError, DatabaseFullError, NotMigratedError
from app.store.session import Database, DatabaseOptions
from tests.faults.service import BODY, refused


@pytest.fixture
def small(database_url: str) -> Iterator[Database]:
    """A database with one connection in all, and a second for every wait but that inside a transaction."""
    options = DatabaseOptions(connect_timeout_s=1, statement_timeout_s=1, idle_timeout_s=7, pool_size=1, max_overflow=0)
    opened = Database(database_url, options)
    yield opened
    opened.close()


def run(database: Database, statement: str) -> None:
    with database.session(write=True) as session:
        session.execute(text(statement))


def test_missing_tables_and_columns_are_no_fault_of_the_request(database: Database) -> None:
    """They are there once the migrations have run, and whoever runs them is told."""
    told: list[str] = []
    database.on_not_migrated = lambda: told.append("look")
    with pytest.raises(NotMigratedError, match="migrated"):
        run(database, "SELECT * FROM plans_of_tomorrow")
    with pytest.raises(NotMigratedError):
        run(database, "SELECT column_of_tomorrow FROM plans")
    assert told == ["look", "look"]


@pytest.mark.parametrize(("statement", "error"), [
    ("SELEKT 1", DBAPIError),
    ("INSERT INTO idempotency (key, request_hash, plan_id, created_at) VALUES ('k', 'h', NULL, CURRENT_TIMESTAMP)", IntegrityError),
])  # fmt: skip
def test_mistakes_of_ours_stay_what_they_are(database: Database, statement: str, error: type[Exception]) -> None:
    """Wrong SQL and broken rules of a table are no outage: trying again cannot help."""
    with pytest.raises(error):
        run(database, statement)


def test_a_standby_that_only_reads_is_an_outage(database: Database) -> None:
    """As after a failover: PostgreSQL's and SQLite's ways to refuse a write."""
    postgres = database.engine.dialect.name == "postgresql"
    with pytest.raises(UnavailableError), database.session() as session:
        session.execute(text("SET TRANSACTION READ ONLY" if postgres else "PRAGMA query_only=1"))
        session.execute(text("DELETE FROM plans"))


def test_a_pool_without_a_free_connection_gives_up_in_time(small: Database) -> None:
    """On both databases, after connect_timeout_s."""
    with small.session() as holder:
        holder.execute(text("SELECT 1"))
        started = time.monotonic()
        with pytest.raises(UnavailableError, match="in use"):
            small.ping()
        assert 0.5 < time.monotonic() - started < 4
    small.ping()


def test_an_exhausted_pool_puts_saving_off(database_url: str) -> None:
    """503 with Retry-After while planning goes on; the connection that comes back is enough."""
    settings = AppSettings(database_url=database_url, database_pool_size=1, database_max_overflow=0, database_connect_timeout_s=1)
    app = create_app(settings)
    with TestClient(app) as client:
        with app.state.database.session() as holder:
            holder.execute(text("SELECT 1"))
            assert refused(client.post("/plans", json=BODY))
            assert client.post("/plan", json=BODY).status_code == 200
            assert client.get("/readyz").json()["errors"][0]["loc"] == ["database"]
        assert client.post("/plans", json=BODY).status_code == 201


def test_postgres_ends_a_transaction_that_went_silent(postgres_url: str) -> None:
    """A process that hangs in the middle of a save does not hold its locks for ever; the pool recovers."""
    database = Database(postgres_url, DatabaseOptions(idle_timeout_s=1, pool_size=1, max_overflow=0))
    with pytest.raises(UnavailableError), database.session() as session:
        session.execute(text("SELECT 1"))
        time.sleep(1.5)
        session.execute(text("SELECT 1"))
    database.ping()
    database.close()


def test_a_slow_statement_is_ended(postgres_url: str) -> None:
    """By statement_timeout; a server that vanished without a word is noticed by TCP."""
    database = Database(postgres_url, DatabaseOptions(statement_timeout_s=1, idle_timeout_s=7))
    with pytest.raises(UnavailableError), database.session() as session:
        session.execute(text("SELECT pg_sleep(10)"))
    with database.engine.connect() as connection:
        given = connection.connection.driver_connection.info.get_parameters()
    assert (given["tcp_user_timeout"], given["keepalives_idle"], given["keepalives"]) == ("7000", "7", "1")
    database.close()


def test_a_full_disk_is_said_to_be_full(database: Database) -> None:
    """SQLite's own code, and the SQLSTATE of PostgreSQL."""
    if database.engine.dialect.name == "postgresql":
        statement = "DO $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$"
        with pytest.raises(DatabaseFullError, match="room"):
            run(database, statement)
        return
    with pytest.raises(DatabaseFullError, match="room"), database.session(write=True) as session:
        pages = session.execute(text("PRAGMA page_count")).scalar()
        session.execute(text(f"PRAGMA max_page_count={pages}"))
        session.execute(text("CREATE TABLE large AS SELECT zeroblob(1000000)"))


def test_a_database_that_hangs_holds_up_one_request_a_second() -> None:
    """A host that takes connections and says nothing: the first save waits, those after it are told at once."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        url = f"postgresql+psycopg://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        database = Database(url, DatabaseOptions(connect_timeout_s=2))
        started = time.monotonic()
        with pytest.raises(DatabaseAwayError):
            database.ping()
        first = time.monotonic() - started
        for _ in range(20):
            with pytest.raises(DatabaseAwayError):
                database.ping()
        assert time.monotonic() - started - first < 0.5 < first
        database.close()


def test_an_absence_ends_with_the_first_answer() -> None:
    """One try a second while it lasts; any answer, even a refusal, ends it."""
    now = [100.0]
    absence = Absence(probe_s=1, clock=lambda: now[0])
    absence.check()
    with pytest.raises(DatabaseAwayError), absence.noticed():
        raise DatabaseAwayError("away")
    with pytest.raises(DatabaseAwayError):
        absence.check()
    now[0] += 1
    absence.check()
    with pytest.raises(DatabaseAwayError):
        absence.check()
    with pytest.raises(NotFoundError), absence.noticed():
        raise NotFoundError("it answered that there is no such plan")
    absence.check()
    absence.check()
