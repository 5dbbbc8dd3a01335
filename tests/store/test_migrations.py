"""Migrations: they apply, undo and apply again, agree with the tables, and survive several processes at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from app.domain.errors import UnavailableError
from app.store import jobs, migrate
from app.store.session import make_engine
from app.store.tables import Base
from tests.postgres import PostgresServer

JOB_TABLES = {f"procrastinate_{name}" for name in ("events", "jobs", "periodic_defers", "workers")}


def tables(url: str) -> set[str]:
    engine = make_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def everything(url: str) -> set[str]:
    """The tables there are once every migration is applied: ours, and on PostgreSQL the job engine's."""
    return {"alembic_version", *Base.metadata.tables} | (JOB_TABLES if "postgresql" in url else set())


def of_ours(_: object, name: str | None, kind: str, *__: object) -> bool:
    """Whether the comparison with tables.py is about it."""
    return kind != "table" or name not in JOB_TABLES


def test_up_down_up(empty_database_url: str) -> None:
    """Every migration can be undone, and applied again to what is left."""
    assert migrate.current(empty_database_url) is None
    migrate.upgrade(empty_database_url)
    assert tables(empty_database_url) == everything(empty_database_url)
    assert migrate.current(empty_database_url) == migrate.head()
    migrate.downgrade(empty_database_url, "base")
    assert tables(empty_database_url) == {"alembic_version"}
    migrate.upgrade(empty_database_url)
    migrate.upgrade(empty_database_url)
    assert tables(empty_database_url) == everything(empty_database_url)


def test_migrated_schema_is_the_schema_of_the_tables(database_url: str) -> None:
    """Alembic finds nothing to add, drop or alter between the migrations and tables.py."""
    engine = make_engine(database_url)
    try:
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection, opts={"include_object": of_ours}), Base.metadata) == []
    finally:
        engine.dispose()


def test_several_processes_may_start_at_once(empty_database_url: str) -> None:
    """Whoever comes second waits for the first and finds the work done."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate.upgrade, [empty_database_url] * 4))
    assert migrate.current(empty_database_url) == migrate.head()


def test_a_failed_migration_leaves_nothing_behind(empty_database_url: str) -> None:
    """All of it happens in one transaction: a table in the way undoes the tables made before it."""
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE idempotency (something_else INTEGER)"))
    engine.dispose()
    with pytest.raises(Exception, match="already exists"):
        migrate.upgrade(empty_database_url)
    assert tables(empty_database_url) == {"idempotency"}


def test_an_unreachable_database_is_said_to_be_unavailable(tmp_path: object) -> None:
    """No driver's exception comes out."""
    with pytest.raises(UnavailableError):
        migrate.upgrade(f"postgresql+psycopg://nobody@/none?host={tmp_path}&connect_timeout=2")
    with pytest.raises(UnavailableError):
        migrate.upgrade(f"sqlite:///{tmp_path}/no/such/folder/file.db")


def job_schema(url: str) -> list[tuple[str, str]]:
    """What a database has of the job engine: columns, functions with their text, triggers, indexes and values of types."""
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            return sorted((row[0], row[1]) for part in JOB_SCHEMA for row in connection.execute(text(part)))
    finally:
        engine.dispose()


JOB_SCHEMA = (
    "SELECT table_name, concat_ws(' ', column_name, data_type, column_default, is_nullable) FROM information_schema.columns "
    "WHERE table_name LIKE 'procrastinate%'",
    "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'procrastinate%'",
    "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname LIKE 'procrastinate%'",
    "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'procrastinate%'",
    "SELECT typname, enumlabel FROM pg_enum JOIN pg_type ON pg_type.oid = enumtypid",
)


def test_the_job_engine_has_the_schema_of_its_release(postgres: PostgresServer, postgres_url: str) -> None:
    """What the migrations made is what the installed release would make, and the comment names its newest change.

    Where this fails, a release with changes of its own was let in: write a migration that applies them, as 0003 says.
    """
    fresh = postgres.database()
    with psycopg.connect(fresh.replace("+psycopg", "")) as connection:
        connection.execute(jobs.schema_sql())
    assert job_schema(postgres_url) == job_schema(fresh) != []
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        noted = connection.execute("SELECT obj_description('procrastinate_jobs'::regclass)").fetchone()
    assert noted == (jobs.newest_library_migration(),) == ("03.04.00_50_post_add_retry_failed_job_procedure.sql",)
    postgres.drop(fresh)


def test_going_down_takes_the_job_engine_along(postgres: PostgresServer) -> None:
    """Tables, functions and types: nothing is in the way of what comes later."""
    url = postgres.database()
    migrate.upgrade(url)
    migrate.downgrade(url, "0002")
    assert job_schema(url) == []
    migrate.upgrade(url)
    assert len(job_schema(url)) > 50
    postgres.drop(url)
