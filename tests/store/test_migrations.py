"""Migrations: they apply, undo and apply again, agree with the tables, and survive several processes at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from app.domain.errors import UnavailableError
from app.store import migrate
from app.store.session import make_engine
from app.store.tables import Base


def tables(url: str) -> set[str]:
    engine = make_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_up_down_up(empty_database_url: str) -> None:
    """Every migration can be undone, and applied again to what is left."""
    assert migrate.current(empty_database_url) is None
    migrate.upgrade(empty_database_url)
    assert tables(empty_database_url) == {"alembic_version", *Base.metadata.tables}
    assert migrate.current(empty_database_url) == migrate.head()
    migrate.downgrade(empty_database_url, "base")
    assert tables(empty_database_url) == {"alembic_version"}
    migrate.upgrade(empty_database_url)
    migrate.upgrade(empty_database_url)
    assert tables(empty_database_url) == {"alembic_version", *Base.metadata.tables}


def test_migrated_schema_is_the_schema_of_the_tables(database_url: str) -> None:
    """Alembic finds nothing to add, drop or alter between the migrations and tables.py."""
    engine = make_engine(database_url)
    try:
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
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
