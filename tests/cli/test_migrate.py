"""``shardplan migrate``, on both databases: as a job of its own, and a service that leaves it to that job."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from app import cli
from app.main import create_app
from app.settings import AppSettings
from app.store import migrate
from app.store.session import make_engine
from app.web.schemas import EXAMPLE_REQUEST


@pytest.fixture
def url(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database of each kind, which the command works on."""
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", empty_database_url)
    return empty_database_url


def execute(url: str, *statements: str) -> None:
    engine = make_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_it_says_from_where_to_where(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From nothing, from an older revision, and nothing to do."""
    newest = migrate.head()
    assert cli.main(["migrate", "--check"]) == 3
    assert "the database is empty" in capsys.readouterr().out
    assert migrate.current(url) is None
    assert cli.main(["migrate"]) == 0
    assert capsys.readouterr().out == f"migrated from an empty database to {newest}\n"
    assert migrate.current(url) == newest
    assert cli.main(["migrate", "--check"]) == 0
    assert cli.main(["migrate"]) == 0
    assert capsys.readouterr().out == f"the database is at {newest} already\n" * 2
    migrate.downgrade(url, "0001")
    assert cli.main(["migrate", "--check"]) == 3
    assert f"the database is at 0001; this version needs {newest}" in capsys.readouterr().out
    assert cli.main(["migrate"]) == 0
    assert capsys.readouterr().out == f"migrated from 0001 to {newest}\n"


def test_a_newer_database_is_left_as_it_is(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An older version's job does no harm and does not fail."""
    migrate.upgrade(url)
    execute(url, "UPDATE alembic_version SET version_num = '9999'")
    for arguments in (["migrate", "--check"], ["migrate"]):
        assert cli.main(arguments) == 0
        assert "9999, of a newer version" in capsys.readouterr().out
    assert migrate.current(url) == "9999"


def test_tables_that_are_gone_are_said_to_be(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No migration brings them back; 3, with what does."""
    migrate.upgrade(url)
    execute(url, "DROP TABLE measurements", "DROP TABLE idempotency", "DROP TABLE plans")
    for arguments in (["migrate", "--check"], ["migrate"]):
        assert cli.main(arguments) == 3
        assert "restore a backup" in capsys.readouterr().err


def test_a_migration_that_fails_is_told_in_words(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the database says, and no stack trace."""
    execute(url, "CREATE TABLE plans (something_else INTEGER)")
    assert cli.main(["migrate"]) == 3
    assert "already exists" in capsys.readouterr().err
    assert migrate.current(url) is None


def test_it_waits_for_a_database_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is mounted later; told once, on standard error."""
    folder = tmp_path / "later"
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", f"sqlite:///{folder}/shardplan.db")
    arrival = threading.Timer(0.3, folder.mkdir)
    arrival.start()
    assert cli.main(["migrate", "--wait", "30s"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("migrated from")
    assert err.count("waiting for the database, 30 s at most") == 1
    arrival.join()


def test_it_does_not_wait_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """69, as for every database that does not answer."""
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", f"postgresql://nobody@/none?host={tmp_path}")
    started = time.monotonic()
    assert cli.main(["migrate", "--wait", "0"]) == 69
    assert cli.main(["migrate", "--check", "--wait", "1s"]) == 69
    assert time.monotonic() - started < 20
    assert "does not answer" in capsys.readouterr().err


def test_looking_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it need one."""
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", f"sqlite:///{tmp_path}/new.db")
    assert cli.main(["migrate", "--check"]) == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wait", ["soon", "-1", "1 day", ""])
def test_a_time_that_is_none_is_refused(wait: str, capsys: pytest.CaptureFixture[str]) -> None:
    """64, with what to write."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["migrate", f"--wait={wait}"])
    assert stopped.value.code == 64
    assert "60s" in capsys.readouterr().err


def test_a_service_may_leave_it_to_the_job(url: str) -> None:
    """It changes nothing, plans, says ``migrations`` until the job has run, and is ready then without a restart."""
    with TestClient(create_app(AppSettings(database_url=url, log_format="text", migrate=False))) as client:
        waiting = client.get("/readyz")
        assert waiting.status_code == 503
        (error,) = waiting.json()["errors"]
        assert error["loc"] == ["migrations"]
        assert "shardplan migrate" in error["hint"]
        assert client.post("/plan", json=EXAMPLE_REQUEST).status_code == 200
        assert client.post("/plans", json=EXAMPLE_REQUEST).status_code == 503
        time.sleep(1.2)  # a look of the keeper's, which changes nothing either
        assert migrate.current(url) is None
        assert cli.main(["migrate"]) == 0
        assert client.get("/readyz").json()["migrations"] == "current"
        assert client.post("/plans", json=EXAMPLE_REQUEST).status_code == 201


def test_the_keeper_looks_until_the_job_has_run(url: str) -> None:
    """What it is given to do raises until then, and changes nothing."""
    with pytest.raises(Exception, match="shardplan migrate"):
        migrate.require(url)
    assert migrate.current(url) is None
    migrate.upgrade(url)
    migrate.require(url)
    execute(url, "UPDATE alembic_version SET version_num = '9999'")
    migrate.require(url)
