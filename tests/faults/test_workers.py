"""Several serving processes on one address: together they count and drain, one that dies is replaced, none stays behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.faults.service import Service, running, until
from tests.test_observability import value


def workers_of(service: Service) -> list[psutil.Process]:
    """The serving processes."""
    children = psutil.Process(service.process.pid).children()
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "spawn_main" in " ".join(child.cmdline())]


def served(service: Service) -> float:
    """Probes answered by all of them together."""
    return value(service.metrics(), "shardplan_requests_total", method="GET", route="/healthz", status="200")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database file."""
    return f"sqlite:///{tmp_path / 'workers.db'}"


def test_their_counters_are_added_up_and_outlive_a_worker(url: str, tmp_path: Path) -> None:
    """Whichever answers ``/metrics`` speaks for all; a worker killed outright is replaced, and its counts stay."""
    with running(url, tmp_path, workers=2) as service:
        before = served(service)
        for _ in range(20):  # each on its own connection, so that both take some
            assert service.status("/healthz") == 200
        assert {served(service) for _ in range(6)} == {before + 20}
        victim, other = workers_of(service)
        victim.kill()
        until(lambda: len(workers_of(service)) == 2 and victim.pid not in {process.pid for process in workers_of(service)})
        assert other.is_running()
        until(lambda: service.status("/healthz") == 200)
        assert service.plan().status_code == 200
        assert served(service) >= before + 20
        assert value(service.metrics(), "shardplan_requests_in_progress") == 1  # the one that asks


def test_they_drain_together(url: str, tmp_path: Path) -> None:
    """After SIGTERM to the parent each of them says that it leaves while it still answers; then all are gone."""
    with running(url, tmp_path, workers=2, drain_s=1.5) as service:
        service.process.send_signal(signal.SIGTERM)
        until(lambda: service.wrong() == ["draining"])
        assert service.plan().status_code == 200
        assert service.process.wait(15) == 0


def test_none_stays_behind_when_their_parent_is_killed(url: str, tmp_path: Path) -> None:
    """They would go on answering on a socket that nobody watches."""
    with running(url, tmp_path, workers=2) as service:
        workers = workers_of(service)
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(5)
        gone, alive = psutil.wait_procs(workers, timeout=10)
        assert len(gone) == 2
        assert not alive
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{service.url}/healthz", timeout=5)


def test_a_hung_worker_is_no_reason_to_wait(url: str, tmp_path: Path) -> None:
    """While one is stopped in its tracks, the other answers those that connect to it."""
    with running(url, tmp_path, workers=2) as service:
        victim, _ = workers_of(service)
        victim.suspend()
        deadline = time.monotonic() + 10
        answered = 0
        while answered < 5 and time.monotonic() < deadline:
            try:
                answered += httpx.get(f"{service.url}/healthz", timeout=0.5).status_code == 200
            except httpx.TransportError:
                continue
        victim.resume()
        assert answered == 5
