"""What is seen from outside: figures with few labels, and logs without anything a client sent."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.main import create_app
from app.observability import JsonFormatter, Metrics, count_plan
from app.settings import AppSettings
from app.store.session import Database
from tests.faults.service import BODY

CANARY = "canary7f3a"


def value(rendered: str, name: str, **labels: str) -> float:
    """One sample, as a Prometheus server would read it; 0 where there is none."""
    families = text_string_to_metric_families(rendered)
    return sum(s.value for family in families for s in family.samples if s.name == name and s.labels == labels)


@pytest.fixture
def lines(database_url: str) -> Iterator[tuple[TestClient, io.StringIO]]:
    """A client of the service and all that it logs, at the most talkative level."""
    app = create_app(AppSettings(database_url=database_url, log_level="DEBUG"))
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, written
    logging.getLogger().removeHandler(handler)


def test_plans_are_counted_by_verdict_with_the_size_of_their_search(client: TestClient) -> None:
    """One plan more, its candidates, the reasons of what was rejected, and the latency of its route alone."""
    before = client.get("/metrics").text
    searched = BODY | {"cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 2}]}, "constraints": {}}
    answer = client.post("/plan", json=searched).json()
    after = client.get("/metrics").text

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("shardplan_plans_total", verdict=answer["verdict"]) == 1
    assert grown("shardplan_search_candidates_sum") == answer["search"]["candidates"] > 1
    assert answer["rejected"]
    for rejection in answer["rejected"]:
        reason = re.sub(r"\b\d[\d,.]+\b", "N", rejection["reason"])
        assert grown("shardplan_rejections_total", reason=reason) >= rejection["count"]
    assert grown("shardplan_request_seconds_count", route="/plan") == 1
    assert grown("shardplan_requests_total", method="POST", route="/plan", status="200") == 1


def test_starting_counts_no_plan(client: TestClient) -> None:
    """The pool is shown from the start, with its limit."""
    rendered = client.get("/metrics").text
    assert value(rendered, "shardplan_pool_connections_limit") == 20
    assert value(rendered, "shardplan_pool_connections_in_use") == 0


def test_reasons_cannot_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are taken out; past a hundred reasons the rest is one."""
    monkeypatch.setattr("app.observability._reasons", set())
    before = Metrics().render().count("shardplan_rejections_total{")
    for ranks in range(100, 400):
        count_plan("fits", 1, [(f"no size divides {ranks} ranks", 2)])
    rendered = Metrics().render()
    assert value(rendered, "shardplan_rejections_total", reason="no size divides N ranks") == 600
    for letter in range(300):
        count_plan("fits", 1, [(f"made up reason {chr(0x4E00 + letter)}", 1)])
    rendered = Metrics().render()
    assert value(rendered, "shardplan_rejections_total", reason="other") >= 200
    assert rendered.count("shardplan_rejections_total{") <= before + 101


def test_no_line_of_the_log_holds_what_a_client_sent(lines: tuple[TestClient, io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that are right, wrong, broken, refused by the database and met by a fault of ours; every line has its route."""
    client, written = lines
    named = BODY | {"name": CANARY, "note": CANARY}
    assert client.post("/plans", json=named, headers={"Idempotency-Key": CANARY}).status_code == 201
    assert client.post("/plan", json=BODY | {CANARY: CANARY}).status_code == 422
    assert client.post("/plan", json=BODY | {"model": {"preset": CANARY}}).status_code == 422
    assert client.post("/plan", content=f'{{"{CANARY}": ', headers={"content-type": "application/json"}).status_code == 400
    with client.app.state.database.session(write=True) as session:  # type: ignore[attr-defined]
        session.execute(text("DROP TABLE measurements"))
        session.execute(text("DROP TABLE idempotency"))
        session.execute(text("DROP TABLE plans"))
    assert client.post("/plans", json=named).status_code == 503
    monkeypatch.setattr("app.services.saved_plans.SavedPlans.save", lambda *_, **__: 1 / 0)
    assert client.post("/plans", json=named).status_code == 500
    logged = written.getvalue()
    assert CANARY not in logged
    requests = [line for line in map(json.loads, logged.splitlines()) if line["logger"] == "shardplan.request" and "status" in line]
    assert [(line["route"], line["status"]) for line in requests] == [
        ("/plans", 201), ("/plan", 422), ("/plan", 422), ("unmatched", 400), ("/plans", 503), ("/plans", 500),
    ]  # fmt: skip
    assert "ZeroDivisionError" in logged
    assert "no such table" in logged or "does not exist" in logged


def test_a_row_the_database_refuses_is_not_quoted(database: Database) -> None:
    """PostgreSQL puts the values into its error, SQLAlchemy the parameters; the log keeps the rule that was broken."""
    columns = "id, created_at, name, note, engine_version, model_name, gpu_name, verdict, search_text, edit_token_hash, request, answer"
    statement = f"INSERT INTO plans ({columns}) VALUES ('1', CURRENT_TIMESTAMP, :name, '', '', '', '', 'maybe', '', '', '{{}}', '{{}}')"
    with pytest.raises(IntegrityError) as caught, database.session(write=True) as session:
        session.execute(text(statement), {"name": f"{CANARY}\n{CANARY}"})
    record = logging.makeLogRecord({"msg": "broken", "exc_info": caught._excinfo})
    line = JsonFormatter().format(record)
    assert CANARY not in line
    assert "ck_plans_verdict" in line
