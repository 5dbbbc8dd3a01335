"""Whoever works on a sweep is killed in the middle: another goes on, and every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from sqlalchemy import text

from app.services.sweeps.rows import PLANS_CHUNK
from app.store.session import Database
from tests.faults.service import BODY, ROOT, WAIT_S, Service, running, until
from tests.faults.test_database_away import DURABLE
from tests.postgres import PostgresServer, running_postgres

ROWS, LEASE_S = 200, 1.5
LINES = {"content-type": "application/x-ndjson"}


@pytest.fixture
def postgresql_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database, which the service migrates."""
    url = postgres.database()
    yield url
    postgres.drop(url)


@contextmanager
def worker(database_url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A ``shardplan worker``, gone at the end whatever happened."""
    settings = {"SHARDPLAN_DATABASE_URL": database_url, "SHARDPLAN_SWEEP_LEASE_S": str(LEASE_S), "SHARDPLAN_SHUTDOWN_TIMEOUT_S": "5"}
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "app.cli", "worker"], cwd=ROOT, env=os.environ | settings, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(WAIT_S)


def begin(service: Service, rows: int = ROWS) -> tuple[str, dict[str, str]]:
    """Address and token of a sweep of whole plans, each of another length."""
    bodies = [BODY | {"training": BODY["training"] | {"seq_len": 256 + n}} for n in range(rows)]
    made = httpx.post(f"{service.url}/sweeps?detail=plan", content=b"\n".join(map(orjson.dumps, bodies)), headers=LINES, timeout=WAIT_S)
    assert made.status_code == 202, made.text
    return service.url + made.headers["location"], {"edit-token": made.json()["edit_token"]}


def look(path: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(path, timeout=WAIT_S).json()
    return found


def whole(path: str, rows: int = ROWS) -> bool:
    """Whether every row is there, once, in order, and of its own request."""
    found = [orjson.loads(line) for line in httpx.get(f"{path}/results", timeout=WAIT_S).content.splitlines()]
    return [(row["index"], row["recommended"]["settings"]["seq_len"]) for row in found] == [(n, 256 + n) for n in range(rows)]


def jobs_left(database_url: str) -> list[str]:
    """Chunks that procrastinate still has a job for."""
    database = Database(database_url)
    try:
        with database.session() as session:
            return list(session.execute(text("SELECT status::text FROM procrastinate_jobs WHERE task_name LIKE '%chunk'")).scalars())
    finally:
        database.close()


def test_a_killed_worker_is_replaced(postgresql_url: str, tmp_path: Path) -> None:
    """kill -9 in the middle of a chunk: the chunk is noticed by the silence, done by the next worker, and no row is there twice."""
    with running(postgresql_url, tmp_path, sweep_lease_s=LEASE_S) as service:
        path, _ = begin(service)
        with worker(postgresql_url, tmp_path) as first:
            until(lambda: look(path)["done"] >= PLANS_CHUNK)
            first.kill()
            first.wait(WAIT_S)
        killed = look(path)
        assert killed["state"] == "running"
        assert killed["done"] < ROWS
        assert "doing" in jobs_left(postgresql_url)
        with worker(postgresql_url, tmp_path):
            until(lambda: look(path)["state"] == "done")
            assert whole(path)
            until(lambda: jobs_left(postgresql_url) == [])


def test_jobs_that_are_gone_are_made_again(postgresql_url: str, tmp_path: Path) -> None:
    """Whatever became of them: a chunk that is not done is enough."""
    with running(postgresql_url, tmp_path, sweep_lease_s=LEASE_S) as service:
        path, _ = begin(service, 30)
        database = Database(postgresql_url)
        with database.session(write=True) as session:
            assert session.execute(text("DELETE FROM procrastinate_jobs")).rowcount == 2  # type: ignore[attr-defined]
        database.close()
        with worker(postgresql_url, tmp_path):
            until(lambda: look(path)["state"] == "done")
        assert whole(path, 30)


def test_a_worker_told_to_leave_gives_its_chunk_back(postgresql_url: str, tmp_path: Path) -> None:
    """SIGTERM: it ends by itself, nothing waits for a silence, and the next worker goes on; a cancelled sweep then stops."""
    with running(postgresql_url, tmp_path) as service:
        path, token = begin(service)
        with worker(postgresql_url, tmp_path) as first:
            until(lambda: look(path)["done"] >= PLANS_CHUNK)
            first.terminate()
            assert first.wait(10) == 0
        assert "doing" not in jobs_left(postgresql_url)
        left = look(path)["done"]
        assert left < ROWS
        with worker(postgresql_url, tmp_path):
            until(lambda: look(path)["done"] > left, within_s=15)
            cancelled = httpx.post(f"{path}/cancel", headers=token).json()
            assert cancelled["state"] == "cancelled"
            until(lambda: jobs_left(postgresql_url) == [])
        there = look(path)
        assert (there["state"], there["done"]) == ("cancelled", cancelled["done"])
        assert there["done"] < ROWS


def test_a_worker_outlives_its_database(tmp_path: Path) -> None:
    """Started without it, and left alone by it in the middle: it waits, and goes on."""
    with running_postgres(DURABLE) as server:
        url = server.database()
        with running(url, tmp_path) as service:
            path, _ = begin(service)
            server.stop()
            with worker(url, tmp_path) as alone:
                until(lambda: b"waits for the database" in (tmp_path / "worker.log").read_bytes())
                server.start()
                until(lambda: look(path).get("done", 0) >= PLANS_CHUNK)
                server.stop(signal.SIGQUIT)
                server.start()
                until(lambda: look(path).get("state") == "done")
                assert alone.poll() is None
            assert whole(path)


def test_a_killed_service_goes_on_by_itself(tmp_path: Path) -> None:
    """On SQLite the service does the work: killed and started again it finds what is left."""
    url = f"sqlite:///{tmp_path / 'service.db'}"
    with running(url, tmp_path, sweep_lease_s=LEASE_S) as service:
        path, _ = begin(service)
        until(lambda: look(path)["done"] >= PLANS_CHUNK)
        service.signal(signal.SIGKILL)
        service.start()
        assert look(path)["done"] < ROWS
        until(lambda: look(path)["state"] == "done")
        assert whole(path)


def test_two_services_on_one_file_share_the_work(tmp_path: Path) -> None:
    """No row is done by both; the one that is killed leaves its chunk to the other."""
    url = f"sqlite:///{tmp_path / 'service.db'}"
    (tmp_path / "other").mkdir()
    with running(url, tmp_path, sweep_lease_s=LEASE_S) as one, running(url, tmp_path / "other", sweep_lease_s=LEASE_S) as other:
        path, _ = begin(one)
        until(lambda: look(path)["done"] >= PLANS_CHUNK)
        one.signal(signal.SIGKILL)
        path = path.replace(one.url, other.url)
        until(lambda: look(path)["state"] == "done")
        assert whole(path)
