"""A private service whose database stops: known keys plan on, others are put off, and all is as before once it is back."""

from __future__ import annotations

from pathlib import Path

import httpx

from app.services.keys import Keys
from app.store.migrate import upgrade
from app.store.session import Database
from tests.faults.service import BODY, WAIT_S, Service, refused, running, until
from tests.postgres import running_postgres


def plan(service: Service, key: str) -> httpx.Response:
    return httpx.post(f"{service.url}/plan", json=BODY, headers={"authorization": f"Bearer {key}"}, timeout=WAIT_S)


def test_known_keys_plan_on(tmp_path: Path) -> None:
    """A key that was never seen cannot be checked, which is not the same as wrong; what is no key is wrong as ever."""
    with running_postgres() as server:
        url = server.database()
        upgrade(url)
        database = Database(url)
        keys = Keys(database)
        seen, other = keys.create("seen", ["plan"]).text, keys.create("other", ["plan"]).text
        with running(url, tmp_path, require_keys=True) as service:
            assert plan(service, seen).status_code == 200
            server.stop()
            assert [plan(service, seen).status_code for _ in range(3)] == [200, 200, 200]
            assert all(refused(plan(service, other)) for _ in range(3))
            assert plan(service, "shp_wrong").status_code == 401
            server.start()
            until(lambda: plan(service, other).status_code == 200)
            assert plan(service, seen).status_code == 200
            log = service.log.read_text()
            assert not any(key.split("_", 2)[2] in log for key in (seen, other))
        database.close()
