"""The commands of docs/operations.md under Backup and restore, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from app.store.migrate import upgrade
from app.store.session import Database
from tests.postgres import PostgresServer, _programs
from tests.store.test_never_change import contents
from tests.store.test_transfer import fill

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "operations.md").read_text().partition("## Backup and restore")[2].partition("\n## ")[0]
ANY, POSTGRESQL, SQLITE = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to work in, with the command as an installation has it."""
    command = tmp_path / "bin" / "shardplan"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m app.cli \"$@\"\n")
    command.chmod(0o755)
    return tmp_path


def run(script: str, folder: Path, **environment: str) -> str:
    """Run a block of the documentation; it has to succeed."""
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"], str(_programs())])
    known = os.environ | environment | {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-euc", script], cwd=folder, env=known, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def filled(url: str) -> str:
    upgrade(url)
    database = Database(url)
    fill(database)
    database.close()
    return url


def plain(url: str) -> str:
    """An address as people write it."""
    return url.replace("postgresql+psycopg:", "postgresql:")


def test_export_and_import(folder: Path, postgres: PostgresServer) -> None:
    """To the other kind of database, twice, and back."""
    there, back = postgres.database(), f"sqlite:///{folder / 'back.db'}"
    source = filled(f"sqlite:///{folder / 'shardplan.db'}")
    for added in ("3 added, 0 there already", "0 added, 3 there already"):
        told = run(ANY, folder, SHARDPLAN_DATABASE_URL=source, NEW_DATABASE_URL=plain(there))
        assert f"plans: {added}" in told
    assert (folder / "plans.jsonl").stat().st_mode & 0o777 == 0o600
    run(ANY, folder, SHARDPLAN_DATABASE_URL=plain(there), NEW_DATABASE_URL=back)
    assert contents(back) == contents(source)
    (trial,) = re.findall(r"`(SHARDPLAN_DATABASE_URL=.*?)`", SECTION)
    run(trial, folder)
    assert contents(f"sqlite:///{folder / 'trial.db'}") == contents(source)
    postgres.drop(there)


def test_through_a_pipe(folder: Path) -> None:
    """Standard output and input do as well as files."""
    source = filled(f"sqlite:///{folder / 'shardplan.db'}")
    told = run("shardplan export | SHARDPLAN_DATABASE_URL=sqlite:///piped.db shardplan import -", folder, SHARDPLAN_DATABASE_URL=source)
    assert told == "plans: 3 added, 0 there already; idempotency: 2 added, 0 there already; measurements: 1 added, 0 there already\n"
    assert contents(f"sqlite:///{folder / 'piped.db'}") == contents(source)


def test_dump_and_restore(folder: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """pg_dump brings rows, revision and triggers into an empty database."""
    source, copy = filled(postgres.database()), postgres.database()
    run(POSTGRESQL, folder, SHARDPLAN_DATABASE_URL=plain(source), NEW_DATABASE_URL=plain(copy))
    assert contents(copy) == contents(source)
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", plain(copy))
    assert exit_code(["export"]) == 0
    triggers = run(f"psql -At '{plain(copy)}' -c \"SELECT tgname FROM pg_trigger WHERE tgname LIKE '%never_change' ORDER BY 1\"", folder)
    assert triggers.split() == ["idempotency_never_change", "plans_never_change"]
    postgres.drop(source)
    postgres.drop(copy)


def test_copy_of_a_sqlite_file_in_use(folder: Path) -> None:
    """What lies in the -wal file comes along."""
    source = f"sqlite:///{folder / 'shardplan.db'}"
    upgrade(source)
    service = Database(source)
    fill(service)
    assert (folder / "shardplan.db-wal").stat().st_size > 0
    run(SQLITE, folder)
    service.close()
    assert contents(f"sqlite:///{folder / 'copy.db'}") == contents(source)


def exit_code(arguments: list[str]) -> int:
    """Exit code of the command, here; it starts as a process of its own in the tests above."""
    try:
        return cli.main(arguments)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def test_exit_codes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line or setting that is wrong is 64, never 2, which says that a plan does not fit; the others are as documented."""
    monkeypatch.chdir(folder)
    assert exit_code([]) == 64
    assert exit_code(["exprot"]) == 64
    assert exit_code(["plan"]) == 64
    assert exit_code(["import"]) == 64
    assert exit_code(["export", "--colour"]) == 64
    assert exit_code(["export"]) == 3
    assert exit_code(["import", "nofile.jsonl"]) == 3
    (folder / "bad.jsonl").write_text('{"format":"shardplan-export","version":1}\n')
    assert exit_code(["import", "bad.jsonl"]) == 3
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", "mysql://x")
    assert exit_code(["export"]) == 64
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", f"postgresql://nobody@/none?host={folder}")
    assert exit_code(["export", "-o", "out.jsonl"]) == 69
    assert not list(folder.glob("out.jsonl*"))
