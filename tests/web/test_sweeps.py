"""``/sweeps`` over HTTP: the same figures as single calls, sizes, tokens, keys, and answers that name the line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import AppSettings
from tests.faults.service import BODY, until
from tests.services.test_sweeps import SENSELESS, VARIED, is_part, without_clock

LINES = {"content-type": "application/x-ndjson"}
GRID = {"base": VARIED[1], "axes": {"training.seq_len": [2048, 4096], "cluster.pools.0.nodes": [1, 2]}}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A service with small limits."""
    settings = AppSettings(
        database_url=f"sqlite:///{tmp_path / 'service.db'}", log_format="text", max_body_bytes=4096, max_sweep_body_bytes=60_000,
        sweep_requests_max=50, sweep_plans_max=5, sweeps_waiting_max=2,
    )  # fmt: skip
    with TestClient(create_app(settings)) as opened:
        yield opened


def lines_of(*bodies: Any) -> bytes:
    return b"\n".join(map(orjson.dumps, bodies))


def done(client: TestClient, path: str) -> dict[str, Any]:
    """The sweep once it is done."""
    until(lambda: client.get(path).json()["state"] == "done")
    found: dict[str, Any] = client.get(path).json()
    return found


def rows(client: TestClient, path: str) -> list[dict[str, Any]]:
    answer = client.get(f"{path}/results")
    assert answer.headers["content-type"] == "application/jsonl"
    return [orjson.loads(line) for line in answer.content.splitlines()]


@pytest.mark.parametrize("detail", ["figures", "plan"])
def test_rows_are_single_calls(client: TestClient, detail: str) -> None:
    """Whatever ``POST /plan`` says of a request stands in its row, but what runs measured here say beside it."""
    bodies = VARIED[:5]
    made = client.post(f"/sweeps?name=%20lines&detail={detail}", content=lines_of(*bodies), headers=LINES)
    assert made.status_code == 202
    path = made.headers["location"]
    there = done(client, path)
    assert (there["name"], there["total"], there["done"], there["failed"]) == ("lines", 5, 5, 0)
    assert sum(there["verdicts"].values()) == 5
    assert "edit_token" not in there
    for number, (row, body) in enumerate(zip(rows(client, path), bodies, strict=True)):
        single = client.post("/plan", json=body).json()
        single.pop("calibration")
        assert row.pop("index") == number
        if detail == "plan":
            assert without_clock(row) == without_clock(single)
        else:
            codes = [w["code"] for w in single["warnings"]]
            assert [w["code"] for w in row.pop("warnings")] == codes
            assert list(is_part(row, single)) == []


def test_a_grid_as_csv(client: TestClient) -> None:
    """What it varies comes first."""
    made = client.post("/sweeps", json={"name": "grid", "grid": GRID})
    path = made.headers["location"]
    assert made.json()["axes"] == list(GRID["axes"])
    done(client, path)
    answer = client.get(f"{path}/results?format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].endswith('.csv"')
    found = list(csv.DictReader(io.StringIO(answer.text)))
    varied = [f"{cells['training.seq_len']} {cells['cluster.pools.0.nodes']}" for cells in found]
    assert varied == ["2048 1", "2048 2", "4096 1", "4096 2"]
    assert [c["recommended.settings.world_size"] for c in found] == ["8", "16", "8", "16"]


def test_requests_that_make_no_sense_are_rows(client: TestClient) -> None:
    """They are counted apart."""
    path = client.post("/sweeps", json={"requests": [BODY, SENSELESS]}).headers["location"]
    there = done(client, path)
    assert (there["failed"], there["verdicts"]) == (1, {"fits": 1, "tight": 0, "does_not_fit": 0})
    single = client.post("/plan", json=SENSELESS).json()
    error = rows(client, path)[1]["error"]
    assert {key: error[key] for key in ("title", "detail", "errors")} == {key: single[key] for key in ("title", "detail", "errors")}


@pytest.mark.parametrize(
    ("body", "loc", "msg"),
    [
        (
            {"requests": [BODY, BODY | {"training": {"seq_lan": 1}}]},
            ["requests", 1, "training", "seq_lan"],
            "training has no key 'seq_lan'",
        ),
        ({"grid": GRID | {"axes": {"training.seq_len": [1, -1]}}}, ["grid", 1, "training", "seq_len"], "training.seq_len is -1"),
        ({"grid": GRID | {"axes": {"cluster.pools.7.nodes": [1]}}}, ["grid", "axes", "cluster.pools.7.nodes"], "list of 1"),
        ({"requests": [BODY] * 51}, ["requests"], "51 requests; at most 50"),
        ({"requests": [BODY] * 6, "detail": "plan"}, ["requests"], "6 requests; at most 5 are planned with detail plan"),
        ({"requests": [BODY], "gird": {}}, ["gird"], "has no key 'gird'"),
        ({"name": "x"}, [], "give either requests, a list, or grid"),
    ],
)
def test_what_is_wrong_is_named(client: TestClient, body: Any, loc: list[Any], msg: str) -> None:
    """By its place in the sweep, before anything is kept."""
    answer = client.post("/sweeps", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == loc
    assert msg in answer.json()["errors"][0]["msg"]


def test_wrong_lines_are_named(client: TestClient) -> None:
    """Twenty at most, and how many more there are; one that is not JSON, too deep or NaN at once."""
    answer = client.post("/sweeps", content=lines_of(BODY, *[{"model": 1}] * 30), headers=LINES)
    errors = answer.json()["errors"]
    assert answer.status_code == 422
    assert errors[0]["loc"] == ["line", 2, "model"]
    assert errors[0]["msg"].startswith("line 2: model is 1")
    told = {error["loc"][1] for error in errors if error["loc"]}
    assert len(errors) == 21
    assert errors[-1]["msg"] == f"{30 - len(told)} more requests are not valid"
    for line, status, detail in (
        (b"{", 400, "line 2 is not JSON"),
        (b'{"a":NaN}', 400, "line 2"),
        (b"[" * 99 + b"]" * 99, 422, "in line 2"),
    ):
        answer = client.post("/sweeps", content=b'{"a":1}\n' + line, headers=LINES)
        assert answer.status_code == status
        assert detail in answer.json()["detail"]


def test_only_this_address_takes_large_bodies(client: TestClient) -> None:
    """Up to its own limit; the others keep theirs."""
    large = lines_of(*[BODY] * 20)
    assert len(large) > 4096
    assert client.post("/plan", content=large, headers={"content-type": "application/json"}).status_code == 413
    assert client.post("/sweeps", content=large, headers=LINES).status_code == 202
    assert client.post("/sweeps", content=large * 30, headers=LINES).status_code == 413
    assert client.post("/sweeps", content=large, headers={"content-type": "text/csv"}).status_code == 415


def test_a_key_makes_one_sweep(client: TestClient) -> None:
    """The second answer is about the first sweep, without its token; other requests under the key are refused."""
    key = {"idempotency-key": "nightly"}
    first = client.post("/sweeps", json={"requests": [BODY]}, headers=key)
    again = client.post("/sweeps", json={"requests": [BODY]}, headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    assert "edit_token" not in again.json()
    assert client.post("/sweeps", json={"requests": [BODY, BODY]}, headers=key).status_code == 409


def test_the_token_cancels_and_deletes(client: TestClient) -> None:
    """Another one does not; what is finished stays as it is when cancelled."""
    made = client.post("/sweeps", json={"requests": [BODY]}).json()
    path, token = f"/sweeps/{made['id']}", {"edit-token": made["edit_token"]}
    assert client.post(f"{path}/cancel", headers={"edit-token": "x"}).status_code == 403
    assert client.delete(path, headers={"edit-token": "x"}).status_code == 403
    done(client, path)
    assert client.post(f"{path}/cancel", headers=token).json()["state"] == "done"
    assert client.delete(path, headers=token).status_code == 204
    assert client.get(path).status_code == client.get(f"{path}/results").status_code == 404


def test_too_many_at_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """429 that says when to try again; single plans go on, and /metrics counts what waits."""
    monkeypatch.setattr("app.services.sweeps.work.ChunkWorker.next_key", lambda _: None)
    for _ in range(2):
        assert client.post("/sweeps", json={"requests": [BODY]}).status_code == 202
    answer = client.post("/sweeps", json={"requests": [BODY]})
    assert answer.status_code == 429
    assert answer.json()["type"].endswith("too_many_sweeps")
    assert int(answer.headers["retry-after"]) > 0
    assert client.post("/plan", json=BODY).status_code == 200
    metrics = client.get("/metrics").text
    assert "shardplan_sweeps_unfinished 2.0" in metrics
    assert "shardplan_sweep_chunks_unfinished 2.0" in metrics
