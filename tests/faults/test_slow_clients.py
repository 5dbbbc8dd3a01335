"""Clients that send slowly, or leave in the middle: nothing is held for them, and nothing half-sent is acted on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.main import create_app
from app.settings import AppSettings
from tests.contract.answers import departures
from tests.faults.service import BODY, Service, kept, running, until

FORM = b"model=llama-3.1-8b&gpu=h100-sxm-80gb&gpus_per_node=8&seq_len=8192&name=half"


@pytest.fixture
def service(sqlite_template: Path, tmp_path: Path) -> Iterator[Service]:
    """A service that waits a second for a body."""
    (tmp_path / "service.db").write_bytes(sqlite_template.read_bytes())
    with running(f"sqlite:///{tmp_path / 'service.db'}", tmp_path, body_timeout_s=1) as started:
        yield started


def head(path: str, kind: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode()


def test_a_body_byte_by_byte_is_given_up(service: Service) -> None:
    """408 as a problem after the time for the whole body, however regularly its bytes come; then the connection is closed."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as slow:
        started = time.monotonic()
        slow.sendall(head("/plan", "application/json", 1000) + b"{")
        received = b""
        slow.settimeout(0.1)
        while time.monotonic() - started < 8:
            try:
                slow.sendall(b" ")
                chunk = slow.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if not chunk:
                break
            received += chunk
        took = time.monotonic() - started
    answer, _, body = received.partition(b"\r\n\r\n")
    status, *lines = answer.decode().split("\r\n")
    assert status.startswith("HTTP/1.1 408 ")
    assert "connection: close" in [line.lower() for line in lines]
    headers = dict(line.split(": ", 1) for line in lines)
    told = httpx.Response(408, headers=headers, content=body, request=httpx.Request("POST", f"{service.url}/plan"))
    assert departures(create_app(AppSettings()).openapi(), "/plan", told) == []
    assert json.loads(body)["type"] == "urn:shardplan:problem:body_too_slow"
    assert "within 1 s" in json.loads(body)["detail"]
    assert 0.9 < took < 5


def test_many_slow_clients_are_in_nobodys_way(service: Service) -> None:
    """They wait without a thread; planning goes on meanwhile, and their connections are gone after it."""
    slow = [socket.create_connection(("127.0.0.1", service.port), timeout=10) for _ in range(60)]
    for client in slow:
        client.sendall(head("/plan", "application/json", 1000) + b"{")
    assert service.plan().status_code == 200
    for client in slow:
        assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
        client.close()
    assert 'route="unmatched",status="408"} 60.0' in service.metrics()


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [("/save", "application/x-www-form-urlencoded", FORM), ("/plans", "application/json", json.dumps(BODY).encode())],
)
def test_a_client_that_leaves_in_the_middle_does_nothing(service: Service, path: str, kind: str, body: bytes) -> None:
    """Not even where what has come reads as a whole: what is missing may change it."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as gone:
        gone.sendall(head(path, kind, len(body) + 10) + body)
        time.sleep(0.2)
    until(lambda: 'status="499"} 1.0' in service.metrics())
    assert kept(service._environment["SHARDPLAN_DATABASE_URL"]) == ({}, {})
    assert "Traceback" not in service.log.read_text()
