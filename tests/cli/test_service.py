"""A service that refuses, breaks, or is none: what the command says, and its exit code."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from app import cli
from tests.cli.conftest import ZERO
from tests.cli.test_check import Write


class Scripted(HTTPServer):
    """Gives every request one answer, and keeps the keys that were sent."""

    status, document, media_type = 200, "{}", "application/problem+json"

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answers(self, status: int, document: Any, media_type: str = "application/problem+json") -> None:
        self.status, self.media_type = status, media_type
        self.document = document if isinstance(document, str) else json.dumps(document)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Scripted)
        self.rfile.read(int(self.headers["content-length"]))
        server.keys.append(self.headers["authorization"])
        self.send_response(server.status)
        self.send_header("content-type", server.media_type)
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(server.document.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "document", "code", "said"),
    [
        (401, {"title": "Who are you?", "detail": "this service wants an API key"}, 3, "wants an API key"),
        (422, {"detail": "no", "errors": [{"loc": ["a", 0], "msg": "a is wrong", "hint": "mend it"}]}, 3, "a.0: a is wrong; mend it"),
        (500, {"detail": "this is a fault in Shardplan"}, 69, "a fault in Shardplan"),
        (404, "<html>", 3, "is it the address of a Shardplan service?"),
        (200, "<html>", 69, "not JSON"),
        (200, {"verdict": "fits"}, 69, "not one this client knows"),
    ],
)
def test_what_is_no_plan(
    scripted: Scripted, spec: Write, capsys: pytest.CaptureFixture[str], status: int, document: Any, code: int, said: str
) -> None:
    """Said in words; 69 where the service is at fault, 3 where the request is."""
    scripted.answers(status, document)
    assert cli.main(["plan", spec(ZERO), "--against", scripted.url]) == code
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_the_key_of_the_environment_goes_along(scripted: Scripted, spec: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bearer token; without one there is no header."""
    scripted.answers(403, {"detail": "no"})
    cli.main(["plan", spec(ZERO), "--against", scripted.url])
    monkeypatch.setenv("SHARDPLAN_API_KEY", "abc")
    cli.main(["plan", spec(ZERO), "--against", scripted.url])
    assert scripted.keys == [None, "Bearer abc"]


@pytest.mark.parametrize(("url", "code"), [("http://127.0.0.1:9", 69), ("localhost", 3)])
def test_nobody_there(spec: Write, capsys: pytest.CaptureFixture[str], url: str, code: int) -> None:
    """69 for a service that does not answer, with a line for each wait; 3 for what is no address."""
    assert cli.main(["plan", spec(ZERO), "--against", url]) == code
    err = capsys.readouterr().err
    assert url in err
    assert err.count("asking again in") == (3 if code == 69 else 0)
