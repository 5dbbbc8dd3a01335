"""A hub on this machine that answers as a test says, for what huggingface_hub asks: a revision, then a file at its commit."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Reply = Callable[["Answering"], None]


@dataclass(slots=True)
class StandIn:
    """The hub, and what it was asked.

    Attributes:
        url: its address; others: replies by path, instead of what a hub would say.
        asked: method and path of every request; headers: of the same.
    """

    url: str
    config: Any
    others: dict[str, Reply] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class Answering(BaseHTTPRequestHandler):
    """One request."""

    hub: StandIn

    def do_GET(self) -> None:
        """As a hub answers, unless the test has another reply for the path."""
        path = self.path.partition("?")[0]
        self.hub.asked.append(f"GET {path}")
        self.hub.headers.append({name.lower(): value for name, value in self.headers.items()})
        for start, reply in self.hub.others.items():
            if path.startswith(start):
                return reply(self)
        if path.startswith("/api/models/"):
            name = path.removeprefix("/api/models/").partition("/revision/")[0]
            return self.say(200, json.dumps({"id": name, "_id": "1", "sha": COMMIT}).encode())
        if path.endswith(f"/resolve/{COMMIT}/config.json"):
            return self.say(200, json.dumps(self.hub.config).encode(), {"x-repo-commit": COMMIT, "etag": '"1"'})
        return self.say(404, b"{}", {"x-error-code": "RepoNotFound"})

    def say(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests print nothing."""


def says(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> Reply:
    """A reply that is always the same; what is no bytes is sent as JSON."""
    return lambda request: request.say(status, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)


def leads_to(url: str) -> Reply:
    """A redirect."""
    return says(307, b"", {"location": url})


def drips(pause_s: float, *, head: bool = False) -> Reply:
    """An answer whose bytes come one at a time, for ever: of the head, or of the body behind it."""

    def reply(request: Answering) -> None:
        if not head:
            request.send_response(200)
            request.end_headers()
        for byte in b"HTTP/1.1 200 OK\r\nx: " + b"x" * 10_000:
            try:
                request.wfile.write(bytes([byte]))
                request.wfile.flush()
            except OSError:
                return
            time.sleep(pause_s)

    return reply


@contextmanager
def standing_in(config: Any) -> Iterator[StandIn]:
    """A hub for the length of a test."""
    handler = type("Handler", (Answering,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.hub = StandIn(f"http://127.0.0.1:{server.server_port}", config)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield handler.hub  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
