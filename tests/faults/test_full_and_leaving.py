"""A full disk keeps nothing half-written; a process told to leave says so first and finishes what it has begun."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, text

from app.main import create_app
from app.settings import AppSettings
from app.store.session import Database
from tests.faults.service import BODY, kept, refused, running, until

FULL = (
    "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$",
    "CREATE TRIGGER full_disk BEFORE INSERT ON idempotency FOR EACH ROW EXECUTE FUNCTION full_disk()",
)


@contextmanager
def full(engine: Engine) -> Iterator[None]:
    """No room: SQLite may take no more pages; PostgreSQL fails at the second of the two rows of a save."""
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            for statement in FULL:
                connection.execute(text(statement))
        yield
        with engine.begin() as connection:
            connection.execute(text("DROP FUNCTION full_disk CASCADE"))
        return

    def limit(connection: Any, _record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 4}")

    event.listen(engine, "connect", limit)
    engine.dispose()
    yield
    event.remove(engine, "connect", limit)
    engine.dispose()


def test_a_full_disk_puts_saving_off(database_url: str) -> None:
    """503 that names the reason, planning and reading go on, neither row is kept; with room again the same key saves."""
    app = create_app(AppSettings(database_url=database_url))
    with TestClient(app) as client:
        first = client.post("/plans", json=BODY, headers={"Idempotency-Key": "first"}).json()["id"]
        before = kept(database_url)
        with full(app.state.database.engine):
            answer = client.post("/plans", json=BODY, headers={"Idempotency-Key": "second"})
            assert refused(answer)
            assert "no room left" in answer.json()["detail"]
            assert client.post("/plan", json=BODY).status_code == 200
            assert client.get(f"/plans/{first}", headers={"accept": "application/json"}).status_code == 200
            assert kept(database_url) == before
        assert client.post("/plans", json=BODY, headers={"Idempotency-Key": "second"}).status_code == 201
    assert sorted(kept(database_url)[1]) == ["first", "second"]


@contextmanager
def locked(database_url: str) -> Iterator[None]:
    """Saves have to wait."""
    database = Database(database_url)
    with database.session(write=True) as session:
        session.execute(text("LOCK TABLE plans IN ACCESS EXCLUSIVE MODE" if "postgresql" in database_url else "SELECT 1"))
        yield
    database.close()


def test_a_process_told_to_leave_finishes_what_it_has_begun(database_url: str, tmp_path: Path) -> None:
    """SIGTERM: readiness goes first while requests are still taken, then the socket, and the save under way last."""
    with running(database_url, tmp_path, drain_s=2) as service, ThreadPoolExecutor(1) as pool:
        with locked(database_url):
            save = pool.submit(service.save, "under way")
            until(lambda: "shardplan_pool_connections_in_use 1.0" in service.metrics())
            service.process.send_signal(signal.SIGTERM)
            until(lambda: service.wrong() == ["draining"])
            assert service.plan().status_code == 200
            until(lambda: service.status("/healthz") == 0)
            assert service.process.poll() is None
            assert not save.done()
        answer = save.result(30)
        assert answer.status_code == 201
        service.process.wait(30)
        assert service.process.returncode == -signal.SIGTERM
    assert kept(database_url)[1] == {"under way": answer.json()["id"]}
