"""Many clients at once on two workers and PostgreSQL: what is refused, lost or saved twice, how long it takes, whether memory stays flat.

``make bench ARGS=load`` starts a PostgreSQL of its own that writes to disk as in production, and the service on it. Clients
send one request after another without a pause, each on its own connection. A tenth of the saves are sent twice at the same
time under one ``Idempotency-Key``. ``SHARDPLAN_LOAD_S`` is how long, ``SHARDPLAN_LOAD_CLIENTS`` how many.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import psutil
from sqlalchemy import text

from app.store.session import Database
from bench.http import EIGHT_GPUS, pinned_requests, service
from bench.wire import Reply, Wire
from tests.postgres import running_postgres

CLIENTS = int(os.environ.get("SHARDPLAN_LOAD_CLIENTS", "200"))
LOAD_S = float(os.environ.get("SHARDPLAN_LOAD_S", "300"))
WORKERS, TWICE_FRAC, WARM_S = 2, 0.1, 3.0
MIX = {"pinned plan": 50, "search": 15, "save": 15, "read": 15, "list": 5}
_DURABLE = ("listen_addresses=", "max_connections=60")
_SEARCHES = [
    EIGHT_GPUS | {"training": {"seq_len": seq_len, "global_batch": batch}} for seq_len in (2048, 4096, 8192) for batch in (32, 64, 128)
]


@dataclass
class Seen:
    """What the clients saw, and the service's memory meanwhile."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[str] = field(default_factory=Counter)
    saved: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    rss_bytes: list[int] = field(default_factory=list)
    cpu_s: float = 0


def main() -> None:
    """Print latency by kind of request, what went wrong, and memory."""
    with running_postgres(_DURABLE) as server:
        url = server.database()
        settings = {"SHARDPLAN_DATABASE_URL": url, "SHARDPLAN_WORKERS": str(WORKERS), "SHARDPLAN_LOG_LEVEL": "WARNING"}
        with service(settings) as address:
            time.sleep(WARM_S)  # the other worker as well
            (process,) = (child for child in psutil.Process().children() if "app.main" in child.cmdline())
            seen = asyncio.run(_load(address, process))
        _report(seen, _kept(url))


async def _load(address: str, process: psutil.Process) -> Seen:
    seen, pinned = Seen(), _that_fit(address)
    end = time.monotonic() + LOAD_S
    watcher = asyncio.create_task(_watch(process, seen, end))
    seen.cpu_s -= _cpu_s(process)
    await asyncio.gather(*(_client(number, address, pinned, seen, end) for number in range(CLIENTS)))
    await watcher
    seen.cpu_s += _cpu_s(process)
    return seen


def _that_fit(address: str) -> list[dict[str, Any]]:
    """Pinned plans as pipelines send them: those that fit."""
    with httpx.Client(base_url=address, timeout=60) as client:
        return [body for body in pinned_requests() if client.post("/plan", json=body).json()["verdict"] != "does_not_fit"]


async def _client(number: int, address: str, pinned: list[dict[str, Any]], seen: Seen, end: float) -> None:
    choose = random.Random(number)
    mine: list[str] = []
    wire, second = Wire(address), Wire(address)
    while time.monotonic() < end:
        await _one(choose, (wire, second), pinned, seen, mine)
    wire.close()
    second.close()


async def _one(choose: random.Random, wires: tuple[Wire, Wire], pinned: list[dict[str, Any]], seen: Seen, mine: list[str]) -> None:
    (kind,), (wire, _) = choose.choices(list(MIX), list(MIX.values())), wires
    if kind == "pinned plan":
        await _timed(seen, kind, wire.ask("POST", "/plan", choose.choice(pinned)))
    elif kind == "search":
        await _timed(seen, kind, wire.ask("POST", "/plan", choose.choice(_SEARCHES)))
    elif kind == "list":
        await _timed(seen, kind, wire.ask("GET", "/plans?limit=20"))
    elif kind == "read" and mine:
        await _timed(seen, kind, wire.ask("GET", f"/plans/{choose.choice(mine)}"))
    else:
        mine.extend(await _save(seen, wires[: 2 if choose.random() < TWICE_FRAC else 1], choose.choice(pinned)))


async def _save(seen: Seen, wires: tuple[Wire, ...], body: dict[str, Any]) -> set[str]:
    key = uuid.uuid4().hex
    named = body | {"name": key}
    sent = (_timed(seen, "save", wire.ask("POST", "/plans", named, {"idempotency-key": key})) for wire in wires)
    for answer in await asyncio.gather(*sent):
        if answer is not None and answer.status in (200, 201):
            seen.saved[key].add(orjson.loads(answer.body)["id"])
    return seen.saved[key]


async def _timed(seen: Seen, kind: str, request: Awaitable[Reply]) -> Reply | None:
    started = time.perf_counter()
    try:
        answer = await request
    except (OSError, EOFError, TimeoutError) as error:
        seen.statuses[type(error).__name__] += 1
        return None
    seen.seconds[kind].append(time.perf_counter() - started)
    seen.statuses[str(answer.status)] += 1
    return answer


async def _watch(process: psutil.Process, seen: Seen, end: float) -> None:
    while time.monotonic() < end:
        seen.rss_bytes.append(sum(child.memory_info().rss for child in process.children(recursive=True)))
        await asyncio.sleep(1)


def _cpu_s(process: psutil.Process) -> float:
    """Processor time that the workers have used."""
    return sum(sum(child.cpu_times()[:2]) for child in process.children(recursive=True))


def _kept(url: str) -> Counter[str]:
    """How many plans the database has under each name, which is the key it was saved with."""
    database = Database(url)
    try:
        with database.session() as session:
            return Counter(session.execute(text("SELECT name FROM plans")).scalars())
    finally:
        database.close()


def _report(seen: Seen, kept: Counter[str]) -> None:
    everything = [s for seconds in seen.seconds.values() for s in seconds]
    print(
        f"{CLIENTS} clients, {WORKERS} workers, {LOAD_S:.0f} s, {len(everything) / LOAD_S:.0f} requests/s, "
        f"{1000 * seen.cpu_s / len(everything):.1f} ms of the workers' processors each"
    )
    print(f"{'':14s}{'requests':>9s}{'p50 ms':>9s}{'p95 ms':>9s}{'p99 ms':>9s}{'longest':>9s}")
    for kind, seconds in (*sorted(seen.seconds.items()), ("all", everything)):
        cuts = statistics.quantiles(seconds, n=100)
        print(f"{kind:14s}{len(seconds):9d}" + "".join(f"{1000 * s:9.0f}" for s in (cuts[49], cuts[94], cuts[98], max(seconds))))
    print("statuses: " + ", ".join(f"{count} × {status}" for status, count in seen.statuses.most_common()))
    lost = [key for key, ids in seen.saved.items() if ids and not kept[key]]
    twice = [key for key, ids in seen.saved.items() if len(ids) > 1 or kept[key] > 1]
    print(f"saves acknowledged: {sum(map(bool, seen.saved.values()))}, lost: {len(lost)}, twice: {len(twice)}")
    quarter = len(seen.rss_bytes) // 4
    early, late = statistics.median(seen.rss_bytes[quarter : 2 * quarter + 1]), statistics.median(seen.rss_bytes[-quarter - 1 :])
    print(f"memory of the service: {early / 2**20:.0f} MiB in the second quarter, {late / early - 1:+.1%} in the last")


if __name__ == "__main__":
    main()
