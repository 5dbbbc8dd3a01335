"""Configuration comes from the environment and is checked at start."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.settings import AppSettings


def test_defaults_need_nothing_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the working folder, this machine only, no fetching."""
    monkeypatch.delenv("SHARDPLAN_DATABASE_URL", raising=False)
    settings = AppSettings()
    assert settings.database_url == "sqlite:///shardplan.db"
    assert settings.host == "127.0.0.1"
    assert settings.fetch_models is False
    assert settings.migrate is True


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the product's prefix; the short form of a PostgreSQL address is completed."""
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", "postgres://u:p@db/plans")
    monkeypatch.setenv("SHARDPLAN_MAX_BODY_BYTES", "4096")
    settings = AppSettings()
    assert settings.database_url == "postgresql+psycopg://u:p@db/plans"
    assert settings.max_body_bytes == 4096


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:", ""])
def test_databases_that_cannot_work_are_refused(url: str) -> None:
    """At start, with what to write instead."""
    with pytest.raises(ValidationError, match=r"sqlite:///file\.db|name a file"):
        AppSettings(database_url=url)
