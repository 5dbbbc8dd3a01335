"""Rows that were saved cannot be changed, by whatever program; and a database of the last revision comes along with its data."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.domain.errors import NotFoundError
from app.services.saved_plans import SavedPlans
from app.store import migrate
from app.store.repository import IdempotencyRecord, PlanFilter, PlanRepository
from app.store.session import Database
from app.store.tables import Base, IdempotencyRow, PlanRow
from tests.store.test_repository import NOW, add, plan

DUMPS = Path(__file__).parent / "data"
TABLES = [Base.metadata.tables[row.__tablename__] for row in (PlanRow, IdempotencyRow)]
COLUMNS = [(table.name, column.name) for table in TABLES for column in table.columns]


@pytest.fixture
def previous(empty_database_url: str) -> str:
    """A database as revision 0001 left it, with three plans and a key, from a dump of each kind."""
    if empty_database_url.startswith("sqlite"):
        connection = sqlite3.connect(empty_database_url.removeprefix("sqlite:///"))
        connection.executescript((DUMPS / "revision_0001.sqlite.sql").read_text())
        connection.close()
    else:
        with psycopg.connect(empty_database_url.replace("+psycopg", "")) as server:
            server.execute((DUMPS / "revision_0001.postgresql.sql").read_text().encode())
    return empty_database_url


def contents(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of both tables that are never changed, documents as the text they are stored as."""
    database = Database(url)
    cast = "CAST({0} AS TEXT)"
    try:
        with database.session() as session:
            return {
                table.name: sorted(
                    tuple(row)
                    for row in session.execute(text(f"SELECT {', '.join(cast.format(c.name) for c in table.columns)} FROM {table.name}"))
                )
                for table in TABLES
            }
    finally:
        database.close()


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_no_column_can_be_changed(database: Database, table: str, column: str) -> None:
    """Not even to the value it has; inserting and deleting go on."""
    add(database, plan())
    with database.session(write=True) as session:
        PlanRepository(session).claim(IdempotencyRecord(key="k", request_hash="h" * 64, plan_id="plan-0000"), NOW)
    before = contents(database.url)
    with pytest.raises(IntegrityError, match=f"rows of {table} never change"), database.session(write=True) as session:
        session.execute(text(f"UPDATE {table} SET {column} = {column}"))
    assert contents(database.url) == before
    with database.session(write=True) as session:
        assert PlanRepository(session).delete("plan-0000", "a" * 64)
    assert contents(database.url) == {"plans": [], "idempotency": []}


def test_a_database_of_the_last_revision_keeps_its_data(previous: str) -> None:
    """Up, down and up again: no row, no byte of a document is another one; then it refuses changes, and today's code works on it."""
    before = contents(previous)
    assert [len(rows) for rows in before.values()] == [3, 1]
    assert migrate.current(previous) == "0001"
    for step in ("head", "0001", "head"):
        if step == "head":
            migrate.upgrade(previous)
        else:
            migrate.downgrade(previous, step)
        assert contents(previous) == before
    database = Database(previous)
    with pytest.raises(IntegrityError, match="never change"), database.session(write=True) as session:
        session.execute(text("UPDATE plans SET note = ''"))
    saved = SavedPlans(database)
    found = saved.list(PlanFilter(name="grösse 50%"))
    assert [item.id for item in found.items] == ["plan-000000000000000000"]
    assert saved.get("plan-000000000000000001").request["zeta"] == 7.5e9
    with pytest.raises(NotFoundError):
        saved.get("plan-3")
    with database.session() as session:
        claimed = PlanRepository(session).claimed("nightly-1")
    assert claimed is not None
    assert claimed.plan_id == "plan-000000000000000001"
    database.close()


def test_going_down_lets_rows_change_again(previous: str) -> None:
    """The triggers and their function are gone after a downgrade, so nothing of them is in the way of an older version."""
    migrate.upgrade(previous)
    migrate.downgrade(previous, "0001")
    database = Database(previous)
    with database.session(write=True) as session:
        session.execute(text("UPDATE plans SET note = 'changed'"))
    assert {row[3] for row in contents(previous)["plans"]} == {"changed"}
    database.close()
