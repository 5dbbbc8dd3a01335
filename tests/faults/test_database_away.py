"""The database is away, not migrated, emptied, or a version ahead: planning works, and everything else is said."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from app.store import migrate
from app.store.session import Database
from app.store.tables import Base
from tests.faults.service import kept, refused, running, until
from tests.postgres import NOT_DURABLE, PostgresServer, running_postgres

DURABLE = [setting for setting in NOT_DURABLE if not setting.startswith(("fsync", "synchronous_commit", "full_page"))]


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that these tests may stop, and that keeps what it acknowledged when it crashes."""
    with running_postgres(DURABLE) as server:
        yield server


def test_it_starts_without_its_database(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Planning answers, saving is put off; once PostgreSQL is there the empty database is migrated by itself."""
    url = own_postgres.database()
    own_postgres.stop()
    try:
        with running(url, tmp_path) as service:
            assert service.plan().status_code == 200
            assert refused(service.save("early"))
            assert service.wrong() == ["database"]
            own_postgres.start()
            until(lambda: service.status("/readyz") == 200)
            assert service.save("early").status_code == 201
            service.signal(signal.SIGTERM)
            assert service.process.returncode == -signal.SIGTERM
        assert migrate.current(url) == migrate.head()
        assert sorted(kept(url)[1]) == ["early"]
    finally:
        own_postgres.stop()
        own_postgres.start()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_it_outlives_a_restart_of_its_database(own_postgres: PostgresServer, tmp_path: Path, sig: int) -> None:
    """What was acknowledged before is there after; nothing of what was refused is."""
    url = own_postgres.database()
    with running(url, tmp_path) as service:
        assert [service.save(f"before {i}").status_code for i in range(8)] == [201] * 8
        own_postgres.stop(sig)
        try:
            assert service.plan().status_code == 200
            assert all(refused(service.save(f"during {i}")) for i in range(3))
            assert service.wrong() == ["database"]
            assert service.status("/healthz") == 200
        finally:
            own_postgres.start()
        until(lambda: service.status("/readyz") == 200)
        assert service.save("during 0").status_code == 201
        assert service.save("before 0").status_code == 200
    plans, keys = kept(url)
    assert sorted(keys) == sorted([*(f"before {i}" for i in range(8)), "during 0"])
    assert {plans[plan_id]: plan_id for plan_id in plans} == keys


def test_a_newer_database_is_served(database_url: str, tmp_path: Path) -> None:
    """An older replica that restarts during an upgrade says that the schema is ahead, saves, and leaves it as it is."""
    change(database_url, "UPDATE alembic_version SET version_num = '9999'")
    with running(database_url, tmp_path) as service:
        assert service.ready()["migrations"] == "ahead"
        assert service.save("old replica").status_code == 201
    assert migrate.current(database_url) == "9999"


def test_dropped_tables_are_said_to_be_missing(database_url: str, tmp_path: Path) -> None:
    """A database that claims to be migrated: no 500, and readiness names the migrations."""
    with running(database_url, tmp_path) as service:
        change(database_url, "DROP TABLE measurements", "DROP TABLE idempotency", "DROP TABLE plans")
        assert refused(service.save("nowhere"))
        assert service.wrong() == ["migrations"]
        assert service.plan().status_code == 200
        assert service.status("/plans") == 503


def test_an_emptied_database_is_migrated_again(database_url: str, tmp_path: Path) -> None:
    """A save that meets no tables is refused and wakes the migrations; the next one is kept."""
    with running(database_url, tmp_path) as service:
        empty(database_url)
        assert refused(service.save("first"))
        until(lambda: service.save("second").status_code == 201)
        assert service.status("/readyz") == 200
    assert sorted(kept(database_url)[1]) == ["second"]


def test_a_migration_that_fails_stops_nothing_else(empty_database_url: str, tmp_path: Path) -> None:
    """A table in the way: the log has why, readiness names the migrations, plans are still made."""
    change(empty_database_url, "CREATE TABLE idempotency (something_else INTEGER)")
    with running(empty_database_url, tmp_path) as service:
        assert service.plan().status_code == 200
        assert service.wrong() == ["migrations"]
        assert refused(service.save("none"))
        assert "already exists" in service.log.read_text()


def change(url: str, *statements: str) -> None:
    """Do something to a database behind the service's back."""
    database = Database(url)
    with database.session(write=True) as session:
        for statement in statements:
            session.execute(text(statement))
    database.close()


def empty(url: str) -> None:
    """Take every table away, as a new disk would."""
    if url.startswith("sqlite"):
        change(
            url, "PRAGMA defer_foreign_keys=ON", *(f"DROP TABLE {table}" for table in reversed([*Base.metadata.tables, "alembic_version"]))
        )
    else:
        change(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
