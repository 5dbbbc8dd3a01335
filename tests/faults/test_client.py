"""The client while the service is killed and comes back: what it was asked for is done, and done once."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.client import Client, Retry
from tests.faults.service import BODY, kept, running

PATIENT = Retry(tries=60, first_wait_s=0.25, longest_wait_s=0.5)


def test_saves_survive_a_killed_service(tmp_path: Path, database_url: str) -> None:
    """Every save that was asked for while it was killed and started again is kept, each once, and answered with its plan."""
    count, answered = 12, threading.Semaphore(0)
    with running(database_url, tmp_path) as service, Client(service.url, retry=PATIENT) as client, ThreadPoolExecutor(3) as pool:

        def save(number: int) -> str:
            plan_id = client.save(BODY, f"save {number}").id
            answered.release()
            return plan_id

        saves = [pool.submit(save, number) for number in range(count)]
        answered.acquire(timeout=60)
        service.signal(signal.SIGKILL)
        service.start()
        ids = [made.result(120) for made in saves]
    plans, keys = kept(database_url)
    assert sorted(plans.values()) == sorted(f"save {number}" for number in range(count))
    assert {plans[plan_id] for plan_id in ids} == set(plans.values())
    assert len(keys) == count
