"""A service of the module's own, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.client import Client
from app.settings import AppSettings
from tests.served import served


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running service with a SQLite file of its own."""
    file = tmp_path_factory.mktemp("served") / "service.db"
    with served(AppSettings(database_url=f"sqlite:///{file}", log_format="text")) as address:
        yield address


@pytest.fixture
def remote(url: str) -> Iterator[Client]:
    """A client of it."""
    with Client(url) as opened:
        yield opened
