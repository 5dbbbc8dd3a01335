"""The OpenAPI document tells the truth: every route's statuses, media types and shapes are those of real answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.web.diagnosing import EXAMPLES
from app.web.schemas import EXAMPLE_REQUEST
from tests.contract.answers import departures

HTML = {"accept": "text/html"}
BIG = b'"' + b"x" * 2**21 + b'"'
JSON = {"content-type": "application/json"}
CHART = "/charts/{name}.{format}"


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def responses(document: dict[str, Any], method: str, route: str) -> dict[str, Any]:
    found: dict[str, Any] = document["paths"][route][method]["responses"]
    return found


def test_files_are_documented_as_files(document: dict[str, Any]) -> None:
    """Each by its own media types; only ds_config.json is JSON, and nothing has an empty schema."""
    for method, route in (("post", "/plan/{file}"), ("get", "/plans/{plan_id}/{file}")):
        content = responses(document, method, route)["200"]["content"]
        assert set(content) == {"application/json", "application/yaml", "text/x-python", "text/x-shellscript"}
    assert list(responses(document, "get", "/metrics")["200"]["content"]) == ["text/plain"]
    every = [r for operations in document["paths"].values() for o in operations.values() for r in o["responses"].values()]
    contents = [c for r in every for c in r.get("content", {}).values()]
    assert len(contents) > 50
    assert all(c.get("schema") for c in contents)


def test_every_problem_is_documented_as_one(document: dict[str, Any]) -> None:
    """application/problem+json, or a page for a browser; FastAPI's own shape of a 422 is nowhere."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status >= "400":
                    assert set(response["content"]) == {"application/problem+json", "text/html"}
    assert "HTTPValidationError" not in document["components"]["schemas"]


def ask_diagnose(ask: Callable[..., None]) -> None:
    """A log with its request, one that says nothing, and bodies that are none."""
    for example in EXAMPLES.values():
        ask(200, "/diagnose", "POST", json=example["value"])
    ask(200, "/diagnose", "POST", json={"text": "nothing at all"}, headers=HTML)
    ask(400, "/diagnose", "POST", content=b"{", headers=JSON)
    ask(413, "/diagnose", "POST", content=BIG, headers=JSON)
    ask(415, "/diagnose", "POST", content=b"x")
    ask(422, "/diagnose", "POST", json={})
    ask(422, "/diagnose", "POST", json={"text": "x" * 200_001}, headers=HTML)


def ask_sweeps(ask: Callable[..., None], client: TestClient) -> None:
    """Good and bad requests about sweeps, which are not done yet or done, as it comes."""
    keyed, one, lines = {"idempotency-key": "s"}, {"requests": [EXAMPLE_REQUEST]}, {"content-type": "application/x-ndjson"}
    made = client.post("/sweeps", json=one, headers=keyed).json()
    token = {"edit-token": made["edit_token"]}
    ask(200, "/sweeps", "POST", json=one, headers=keyed)
    ask(409, "/sweeps", "POST", json={"requests": [EXAMPLE_REQUEST] * 2}, headers=keyed)
    ask(202, "/sweeps", "POST", path="/sweeps?name=lines", content=json.dumps(EXAMPLE_REQUEST), headers=lines)
    ask(202, "/sweeps", "POST", json={"grid": {"base": EXAMPLE_REQUEST, "axes": {"training.seq_len": [1024, 2048]}}})
    for headers in (JSON, lines):
        ask(400, "/sweeps", "POST", content=b"{", headers=headers)
        ask(422, "/sweeps", "POST", content=b"{}", headers=headers)
        ask(422, "/sweeps", "POST", content=b"", headers=headers)
    ask(422, "/sweeps", "POST", content=b"{}", headers=JSON | HTML)
    ask(413, "/sweeps", "POST", content=b" " * (2**26 + 1), headers=lines)
    ask(415, "/sweeps", "POST", content=b"x")
    path = f"/sweeps/{made['id']}"
    ask(200, "/sweeps/{sweep_id}", "GET", path=path)
    ask(404, "/sweeps/{sweep_id}", "GET", path="/sweeps/none")
    for kind in ("jsonl", "csv"):
        ask(200, "/sweeps/{sweep_id}/results", "GET", path=f"{path}/results?format={kind}")
    ask(404, "/sweeps/{sweep_id}/results", "GET", path="/sweeps/none/results")
    ask(422, "/sweeps/{sweep_id}/results", "GET", path=f"{path}/results?format=xml")
    for method, route, there, done in (
        ("POST", "/sweeps/{sweep_id}/cancel", f"{path}/cancel", 200),
        ("DELETE", "/sweeps/{sweep_id}", path, 204),
    ):
        ask(422, route, method, path=there)
        ask(403, route, method, path=there, headers={"edit-token": "x"})
        ask(done, route, method, path=there, headers=token)
        ask(404, route, method, path=there.replace(made["id"], "none"), headers=token)


def ask_measurements(ask: Callable[..., None], client: TestClient, plan: str, token: str) -> None:
    """Good and bad requests about what a run of a plan took."""
    route, one = "/plans/{plan_id}/measurements", "/plans/{plan_id}/measurements/{measurement_id}"
    path, run, keyed = f"/plans/{plan}/measurements", {"peak_bytes": 2**36, "counter": "reserved"}, {"idempotency-key": "m"}
    made = client.post(path, json=run, headers=keyed).json()["id"]
    ask(201, route, "POST", json={"step_s": 9.5, "oom": False, "versions": {"torch": "2.13.0"}})
    ask(200, route, "POST", json=run, headers=keyed)
    ask(409, route, "POST", json={"oom": True}, headers=keyed)
    ask(400, route, "POST", content=b"{", headers=JSON)
    ask(413, route, "POST", content=BIG, headers=JSON)
    ask(415, route, "POST", content=b"x")
    for wrong in ({}, {"step_s": 0}, {"peak_bytes": 2**40, "counter": "device"}):
        ask(422, route, "POST", json=wrong)
    ask(422, route, "POST", json={}, headers=HTML)
    ask(404, route, "POST", path="/plans/none/measurements", json=run)
    for accept in ({}, HTML):
        ask(200, route, "GET", headers=accept)
        ask(404, route, "GET", path="/plans/none/measurements", headers=accept)
    ask(422, one, "DELETE", path=f"{path}/{made}")
    ask(403, one, "DELETE", path=f"{path}/{made}", headers={"edit-token": "x"})
    ask(204, one, "DELETE", path=f"{path}/{made}", headers={"edit-token": token})
    ask(404, one, "DELETE", path=f"{path}/{made}", headers={"edit-token": token})


def test_every_route_answers_as_documented(client: TestClient, document: dict[str, Any]) -> None:
    """Good and bad requests to every route: what comes back is in the document, and so is each status that was aimed at."""
    saved = client.post("/plans", json=EXAMPLE_REQUEST | {"name": "one"}, headers={"idempotency-key": "k"})
    plan, token = saved.json()["id"], saved.json()["edit_token"]
    asked: list[tuple[int, str, Any]] = [(201, "/plans", saved)]

    def ask(status: int, route: str, method: str, **given: Any) -> None:
        path = given.pop("path", route).replace("{plan_id}", plan)
        asked.append((status, route, client.request(method, path, **given)))

    ask(200, "/plans", "POST", json=EXAMPLE_REQUEST | {"name": "one"}, headers={"idempotency-key": "k"})
    ask(409, "/plans", "POST", json=EXAMPLE_REQUEST | {"name": "two"}, headers={"idempotency-key": "k"})
    for route, path in (("/plan", "/plan"), ("/plan/{file}", "/plan/launch.sh"), ("/plans", "/plans")):
        ask(400, route, "POST", path=path, content=b"{", headers=JSON)
        ask(413, route, "POST", path=path, content=BIG, headers=JSON)
        ask(415, route, "POST", path=path, content=b"x")
        ask(422, route, "POST", path=path, json={})
        ask(422, route, "POST", path=path, json={}, headers=HTML)
    ask(200, "/plan", "POST", json=EXAMPLE_REQUEST)
    ask(200, "/plan", "POST", path="/plan?calibrate=false", json=EXAMPLE_REQUEST)
    ask(422, "/plan", "POST", path="/plan?calibrate=perhaps", json=EXAMPLE_REQUEST)
    files = saved.json()["files"]
    assert len(files) == 4
    for file in files:
        ask(200, "/plan/{file}", "POST", path=f"/plan/{file}", json=EXAMPLE_REQUEST)
        ask(200, "/plans/{plan_id}/{file}", "GET", path=f"/plans/{plan}/{file}")
    ask(409, "/plan/{file}", "POST", path="/plan/fsdp2_train.py", json=EXAMPLE_REQUEST)
    ask(404, "/plans/{plan_id}/{file}", "GET", path=f"/plans/{plan}/nothing.txt")
    ask(422, "/plans/{plan_id}/{file}", "GET", path=f"/plans/{plan}/launch.sh?dialect=none")
    for accept in ({}, HTML):
        ask(200, "/plans", "GET", headers=accept)
        ask(422, "/plans", "GET", path="/plans?limit=0", headers=accept)
        ask(200, "/plans/{plan_id}", "GET", headers=accept)
        ask(404, "/plans/{plan_id}", "GET", path="/plans/none", headers=accept)
        ask(200, "/plans/{plan_id}/report", "GET", headers=accept)
        ask(404, "/plans/{plan_id}/report", "GET", path="/plans/none/report", headers=accept)
        ask(422, "/catalog/{kind}", "GET", path="/catalog/none", headers=accept)
        for kind in ("gpus", "instances", "models"):
            ask(200, "/catalog/{kind}", "GET", path=f"/catalog/{kind}", headers=accept)
    for kind in ("json", "svg", "png", "csv", "html"):
        ask(200, CHART, "GET", path=f"/charts/memory.{kind}")
        ask(200, f"/plans/{{plan_id}}{CHART}", "GET", path=f"/plans/{plan}/charts/what-if-gpus.{kind}")
    for accept in ({}, HTML):
        ask(404, CHART, "GET", path="/charts/none.svg", headers=accept)
        ask(422, CHART, "GET", path="/charts/memory.svg?seq_len=lots", headers=accept)
        ask(404, f"/plans/{{plan_id}}{CHART}", "GET", path="/plans/none/charts/memory.svg", headers=accept)
        ask(422, f"/plans/{{plan_id}}{CHART}", "GET", path=f"/plans/{plan}/charts/memory.svg?px=1", headers=accept)
    other = client.post("/plans", json=EXAMPLE_REQUEST | {"name": "another"}).json()["id"]
    for accept in ({}, HTML):
        ask(200, "/plans/compare", "GET", path=f"/plans/compare?ids={plan},{other}", headers=accept)
        ask(404, "/plans/compare", "GET", path=f"/plans/compare?ids={plan},none", headers=accept)
        ask(422, "/plans/compare", "GET", path=f"/plans/compare?ids={plan}", headers=accept)
        ask(200, "/plans/{plan_id}/replan", "POST", path=f"/plans/{plan}/replan", headers=accept)
        ask(404, "/plans/{plan_id}/replan", "POST", path="/plans/none/replan", headers=accept)
    ask_diagnose(ask)
    ask_sweeps(ask, client)
    ask(400, "/audit", "POST", content=b"{", headers=JSON)
    ask(413, "/audit", "POST", content=BIG, headers=JSON)
    ask(415, "/audit", "POST", content=b"x")
    for accept in ({}, HTML):
        ask(422, "/audit", "POST", json={"text": "[1]"}, headers=accept)
    for more in ({}, {name: EXAMPLE_REQUEST[name] for name in ("model", "training", "cluster")}):
        ask(200, "/audit", "POST", json={"config": {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}} | more)
    ask_measurements(ask, client, plan, token)
    ask(200, "/plan", "POST", json=EXAMPLE_REQUEST)
    for route in ("/healthz", "/readyz", "/metrics"):
        ask(200, route, "GET")
    ask(422, "/plans/{plan_id}", "DELETE")
    ask(403, "/plans/{plan_id}", "DELETE", headers={"edit-token": "x"})
    ask(204, "/plans/{plan_id}", "DELETE", headers={"edit-token": token})
    ask(404, "/plans/{plan_id}", "DELETE", headers={"edit-token": token})
    assert [(status, a.status_code, a.request.method, route) for status, route, a in asked if a.status_code != status] == []
    assert {(route, found) for _, route, a in asked if (found := tuple(departures(document, route, a)))} == set()
    assert {route for _, route, _ in asked} == set(document["paths"])
