"""Killed in the middle of 1,000 concurrent saves that clients send again until they are answered."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

from tests.faults.service import BODY, Service, kept, running

SAVES, KILL_AT, PATIENCE_S = 1000, 400, 150
_ANSWER = re.compile(rb"HTTP/1.1 (\d+) .*?\r\nlocation: /plans/(\S+)\r\n", re.DOTALL | re.IGNORECASE)


def test_every_acknowledged_plan_is_there_and_none_twice(database_url: str, tmp_path: Path) -> None:
    """kill -9, and no client that gives up: 1,000 keys, 1,000 plans, each the one its client was told of."""
    with running(database_url, tmp_path, log_level="WARNING") as service:
        acknowledged, resent = asyncio.run(asyncio.wait_for(_all_saved(service), PATIENCE_S))
    plans, keys = kept(database_url)
    assert resent > 0, "nothing was in flight when the service was killed"
    assert acknowledged == keys
    assert len(keys) == SAVES
    assert plans == {plan_id: key for key, plan_id in keys.items()}


async def _all_saved(service: Service) -> tuple[dict[str, str], int]:
    """Send all saves at once, and kill and restart the service meanwhile; the plan of each key, and how many were sent again."""
    acknowledged: dict[str, str] = {}
    resent = 0

    async def save(key: str) -> None:
        nonlocal resent
        while key not in acknowledged:
            try:
                if plan_id := await _save(service.port, key):
                    acknowledged[key] = plan_id
                    return
            except (OSError, asyncio.IncompleteReadError):
                resent += 1
            await asyncio.sleep(0.2)

    async def kill() -> None:
        while len(acknowledged) < KILL_AT:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(service.signal, signal.SIGKILL)
        await asyncio.to_thread(service.start)

    await asyncio.gather(kill(), *(save(f"key {i}") for i in range(SAVES)))
    return acknowledged, resent


async def _save(port: int, key: str) -> str | None:
    """Id of the plan saved, None for 503: one connection a save, since a client library's pool would queue them."""
    body = json.dumps(BODY | {"name": key}).encode()
    head = f"POST /plans HTTP/1.1\r\nHost: test\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.read()
    finally:
        writer.close()
    if answer.startswith(b"HTTP/1.1 503"):
        return None
    found = _ANSWER.match(answer)
    assert found is not None and found[1] in (b"200", b"201"), answer
    return found[2].decode()
