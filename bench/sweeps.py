"""How fast one worker does a sweep of pinned plans on PostgreSQL (``make bench ARGS=sweeps``).

Starts a PostgreSQL that keeps what it acknowledged, the service and one ``shardplan worker``, each a process of its own, and posts
10,000 requests that leave the planner nothing to choose: models, GPUs, strategies, checkpointing and lengths vary, and some do not fit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, product
from typing import Any

import httpx
import orjson
import psutil

from bench.http import pinned_requests, service
from tests.postgres import running_postgres

REQUESTS, TARGET_S = 10_000, 60
SETTINGS = ("listen_addresses=", "max_connections=60")
_GPUS = (("h100-sxm-80gb", 8), ("a100-sxm-80gb", 8), ("a100-sxm-40gb", 8))
_LENGTHS = tuple(range(512, 512 * 48, 512))


def main() -> None:
    """Print how long it took, from the answer to the request until the last row is there."""
    with running_postgres(SETTINGS) as server:
        settings = {"SHARDPLAN_DATABASE_URL": server.database(), "SHARDPLAN_LOG_LEVEL": "WARNING"}
        with service(settings) as url, _worker(settings) as worker, httpx.Client(base_url=url, timeout=120) as client:
            _done(client, _post(client, list(islice(requests(), 200))))  # the worker reads its catalogues meanwhile
            started, spent = time.perf_counter(), _cpu_s(worker)
            path = _post(client, list(requests()))
            posted = time.perf_counter()
            found = _done(client, path)
            done, spent = time.perf_counter(), _cpu_s(worker) - spent
            rows = client.get(f"{path}/results").raise_for_status().content
            read = time.perf_counter()
    print(f"{'sweep, one worker':22s}{'requests':>9s}{'post s':>9s}{'done s':>9s}{'CPU s':>9s}{'plans/s':>9s}{'read s':>9s}{'MB':>7s}")
    seconds = (posted - started, done - posted, spent, REQUESTS / (done - posted), read - done)
    print(f"{'pinned, figures':22s}{found['total']:9d}" + "".join(f"{value:9.1f}" for value in seconds) + f"{len(rows) / 1e6:7.1f}")
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in found["verdicts"].items())
    print(f"{verdicts}, {found['failed']:,} failed; the target is {TARGET_S} s")


def requests() -> Iterator[dict[str, Any]]:
    """Pinned requests, each of them different."""
    bodies = pinned_requests()
    made = product(_LENGTHS, _GPUS, bodies)
    for length, (gpu, per_node), body in islice(made, REQUESTS):
        pool = body["cluster"]["pools"][0] | {"gpu": gpu, "gpus_per_node": per_node}
        yield body | {"training": body["training"] | {"seq_len": length}, "cluster": {"pools": [pool]}}


def _post(client: httpx.Client, bodies: list[dict[str, Any]]) -> str:
    lines = b"\n".join(map(orjson.dumps, bodies))
    return client.post("/sweeps", content=lines, headers={"content-type": "application/jsonl"}).raise_for_status().headers["location"]


def _done(client: httpx.Client, path: str) -> dict[str, Any]:
    while (found := client.get(path).raise_for_status().json())["state"] != "done":
        time.sleep(0.2)
    return dict(found)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _worker(settings: dict[str, str]) -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-m", "app.cli", "worker"], env=os.environ | settings)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


if __name__ == "__main__":
    main()
