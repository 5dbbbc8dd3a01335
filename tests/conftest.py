"""Fixtures that all tests share: a database of each kind, settings, and a client of the whole service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings import AppSettings
from app.store.migrate import upgrade
from app.store.session import Database
from tests.postgres import PostgresServer, running_postgres

KINDS = ["sqlite", "postgresql"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this session's own; started when the first test asks for it."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    """Address of a database with today's schema, shared by the session; the tests' own are copies of it."""
    url = postgres.database()
    upgrade(url)
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with today's schema, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=KINDS)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.database()
    yield url
    server.drop(url)


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database of each kind with today's schema: a SQLite file and a database of a real PostgreSQL."""
    if request.param == "sqlite":
        path = tmp_path / "shardplan.db"
        path.write_bytes(request.getfixturevalue("sqlite_template").read_bytes())
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    template: str = request.getfixturevalue("postgres_url")
    url = server.database(template.partition("@/")[2].partition("?")[0])
    yield url
    server.drop(url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open ``Database`` of each kind."""
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path) -> AppSettings:
    """Settings of a service with a SQLite file of its own."""
    return AppSettings(database_url=f"sqlite:///{tmp_path / 'service.db'}", log_format="text")


@pytest.fixture
def client(settings: AppSettings) -> Iterator[object]:
    """A client of the whole service, started and stopped as in production."""
    from fastapi.testclient import TestClient

    from app.main import create_app

    with TestClient(create_app(settings)) as opened:
        yield opened
