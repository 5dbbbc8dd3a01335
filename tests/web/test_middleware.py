"""What every request passes: id, security headers, size limit, counters."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from app.observability import JsonFormatter, Metrics
from app.settings import AppSettings
from app.web import middleware, problems

LIMIT = 2048
metrics = Metrics()


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = FastAPI(docs_url=None, redoc_url=None)
    problems.install(app)
    middleware.install(app, AppSettings(max_body_bytes=LIMIT), metrics)

    @app.post("/echo/{name}")
    async def echo(name: str, request: Request) -> dict[str, Any]:
        return {"size": len(await request.body()), "id": request.state.request_id}

    @app.get("/boom")
    def boom() -> None:
        raise RuntimeError("secret")

    with TestClient(app) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/echo/x", "/boom", "/nowhere"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    """A page, an error and a 500 alike; nothing inline and nothing from elsewhere may run."""
    answer = client.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(("given", "kept"), [("abc.1_2-3", True), ("x" * 65, False), ("a\tb", False), ("", False)])
def test_request_ids(client: TestClient, given: str, kept: bool) -> None:
    """A well-formed id of the client's is kept, anything else replaced; the endpoint sees the same one."""
    answer = client.post("/echo/x", headers={"x-request-id": given})
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.json()["id"] == answer.headers["x-request-id"]


def test_the_body_reaches_the_endpoint_whole(client: TestClient) -> None:
    """Up to the limit, whether or not its length was declared."""
    assert client.post("/echo/x", content=b"x" * LIMIT).json()["size"] == LIMIT
    assert client.post("/echo/x", content=iter([b"x" * 1000, b"y" * 1000])).json()["size"] == 2000


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"x" * (LIMIT + 1), {}),
        (iter([b"x" * 1000] * 3), {}),
        (b"x", {"content-length": "9" * 30}),
        (b"x", {"content-length": "-1"}),
    ],
    ids=["declared", "chunked", "absurd", "negative"],
)
def test_a_body_that_is_too_big_is_refused(client: TestClient, content: Any, headers: dict[str, str]) -> None:
    """413 as a problem, by the declared length or as soon as the limit is passed."""
    answer = client.post("/echo/x", content=content, headers=headers)
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert f"{LIMIT:,} bytes" in answer.json()["detail"]


def test_a_fault_is_logged_with_its_id_and_counted(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets the id, the log the traceback under it, the metrics a 500 by route."""
    with caplog.at_level(logging.INFO):
        answer = client.get("/boom", headers={"x-request-id": "find-me"})
    assert answer.status_code == 500
    assert "find-me" in answer.json()["detail"]
    assert "secret" not in answer.text
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)
    assert 'shardplan_requests_total{method="GET",route="/boom",status="500"}' in metrics.render()


def test_metrics_use_the_route_not_the_path(client: TestClient) -> None:
    """Labels stay few however many paths are asked for."""
    client.post("/echo/first")
    client.post("/echo/second")
    client.request("BREW", "/made-up-1")
    text = metrics.render()
    assert 'route="/echo/{name}"' in text
    assert "echo/first" not in text
    assert "made-up" not in text
    assert "BREW" not in text
    assert text.count('shardplan_request_seconds_bucket{le="+Inf",route="/echo/{name}"}') == 1


def test_log_lines_are_json() -> None:
    """With the traceback inside, so that one event is one line."""
    try:
        raise ValueError("broken\nline")
    except ValueError as error:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, __file__, 1, "say %s", ("it",), (type(error), error, None), extra={"status": 500}
        )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    parsed = json.loads(line)
    assert (parsed["message"], parsed["status"], parsed["level"]) == ("say it", 500, "ERROR")
    assert "broken" in parsed["exception"]
