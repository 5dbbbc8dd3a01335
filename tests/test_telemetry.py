"""Traces, sent to a collector of this test's own."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import AppSettings
from tests.faults.service import BODY


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """What a collector on this machine was sent: path and body of each request."""
    sent: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield sent
    server.shutdown()


def test_requests_and_statements_are_traced_without_what_clients_sent(database_url: str, collected: list[tuple[str, bytes]]) -> None:
    """Routes and statements arrive; ids, names and search words do not, and probes are not traced."""
    with TestClient(create_app(AppSettings(database_url=database_url, telemetry=True))) as client:
        saved = client.post("/plans", json=BODY | {"name": "canary-name"}).json()
        assert client.get(f"/plans/{saved['id']}", headers={"accept": "application/json"}).status_code == 200
        assert client.get("/plans?q=canary-word", headers={"accept": "application/json"}).status_code == 200
        client.get("/healthz")
    assert {path for path, _ in collected} == {"/v1/traces"}
    traces = b"".join(body for _, body in collected)
    for seen in (b"shardplan", b"POST /plans", b"/plans/{plan_id}", b"INSERT INTO plans"):
        assert seen in traces, seen
    for hidden in (saved["id"].encode(), saved["edit_token"].encode(), b"canary", b"healthz"):
        assert hidden not in traces, hidden


def test_off_by_default_and_without_the_libraries_it_says_what_to_install(settings: AppSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that was asked to trace and cannot does not start as if it did."""
    wanted = builtins.__import__

    def without(name: str, *given: Any, **named: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return wanted(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    create_app(settings)
    with pytest.raises(RuntimeError, match=r"pip install 'shardplan\[telemetry\]'"):
        create_app(settings.model_copy(update={"telemetry": True}))
