"""The service as a process of its own, to be started, stopped and killed, and what the fault tests ask of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from app.store.session import Database

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
BODY: dict[str, Any] = {
    "model": {"shape": {"num_layers": 2, "hidden_size": 256, "num_heads": 4, "head_dim": 64, "ffn_hidden_size": 1024, "vocab_size": 32000}},
    "training": {"seq_len": 512, "micro_batch": 1, "grad_accum": 1, "activation_checkpointing": "none"},
    "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 1, "nodes": 1}]},
    "constraints": {"framework": "ddp", "strategy": "ddp"},
}


class Service:
    """A uvicorn process on a fixed port of this machine, so that clients find it again after a restart."""

    def __init__(self, database_url: str, folder: Path, **settings: object) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url, self.log = f"http://127.0.0.1:{self.port}", folder / "service.log"
        given = {"database_url": database_url, "port": self.port, "drain_s": 0, **settings}
        self._environment = os.environ | {f"SHARDPLAN_{name.upper()}": str(value) for name, value in given.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start; returns once it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "app.main"], cwd=ROOT, env=self._environment, stderr=log)
        until(lambda: self.status("/healthz") == 200 or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def signal(self, sig: int) -> None:
        """Send a signal, and wait for the end."""
        self.process.send_signal(sig)
        self.process.wait(WAIT_S)

    def status(self, path: str) -> int:
        """Status of a GET; 0 where nobody answers."""
        try:
            return httpx.get(self.url + path, timeout=WAIT_S).status_code
        except httpx.TransportError:
            return 0

    def wrong(self) -> list[str]:
        """What ``/readyz`` complains of."""
        answer = httpx.get(f"{self.url}/readyz", timeout=WAIT_S)
        return [error["loc"][0] for error in answer.json()["errors"]] if answer.status_code == 503 else []

    def ready(self) -> dict[str, str]:
        """What ``/readyz`` says where nothing is wrong."""
        answer = httpx.get(f"{self.url}/readyz", timeout=WAIT_S)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def metrics(self) -> str:
        """What Prometheus reads."""
        return httpx.get(f"{self.url}/metrics", timeout=WAIT_S).text

    def plan(self) -> httpx.Response:
        """Plan without saving."""
        return httpx.post(f"{self.url}/plan", json=BODY, timeout=WAIT_S)

    def save(self, key: str) -> httpx.Response:
        """Plan and save under an idempotency key."""
        return httpx.post(f"{self.url}/plans", json=BODY | {"name": key}, headers={"Idempotency-Key": key}, timeout=WAIT_S)


@contextmanager
def running(database_url: str, folder: Path, **settings: object) -> Iterator[Service]:
    """A started service, gone at the end whatever happened."""
    service = Service(database_url, folder, **settings)
    try:
        service.start()
        yield service
    finally:
        if service.process.poll() is None:
            service.signal(signal.SIGKILL)


def until(condition: Callable[[], bool], within_s: float = WAIT_S) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def refused(answer: httpx.Response) -> bool:
    """Whether a save was put off as the contract says: 503, a problem, and when to try again."""
    problem = answer.headers["content-type"] == "application/problem+json"
    return answer.status_code == 503 and problem and int(answer.headers["retry-after"]) > 0


def kept(database_url: str) -> tuple[dict[str, str], dict[str, str]]:
    """What the database holds: the name of each plan by its id, and the plan of each key."""
    database = Database(database_url)
    try:
        with database.session() as session:
            plans = {row.id: row.name for row in session.execute(text("SELECT id, name FROM plans"))}
            keys = {row.key: row.plan_id for row in session.execute(text("SELECT key, plan_id FROM idempotency"))}
    finally:
        database.close()
    return plans, keys
