"""Errors on the wire: one shape for all, words for people, nothing huge echoed, no stack trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, Field

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError, UnavailableError, UnsupportedModelError
from app.observability import Metrics
from app.services.saved_plans import ForbiddenError
from app.settings import AppSettings
from app.web import middleware, problems


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Preset(Strict):
    preset: str


class Shape(Strict):
    num_layers: int
    hidden_size: int


class Training(Strict):
    seq_len: Annotated[int, Field(gt=0)]
    precision: Literal["bf16", "fp16"] = "bf16"
    learning_rate: float | None = None


class Pool(Strict):
    gpu: str | None = None
    nodes: int = 1


class Body(Strict):
    model: Preset | Shape
    training: Training
    pools: list[Pool] = []
    targets: Literal["all"] | list[str] | None = None
    extra: dict[str, int] = {}


ERRORS = {
    "invalid": InvalidRequestError.at("training", "seq_len", msg="seq_len 3 is odd", hint="use 4"),
    "unsupported": UnsupportedModelError("this family is unknown"),
    "not-found": NotFoundError("no such plan"),
    "conflict": ConflictError("nothing fits, so there is no file"),
    "forbidden": ForbiddenError("not your plan"),
    "unavailable": UnavailableError("the database sleeps"),
    "bug": ZeroDivisionError("secret detail"),
}
VALID = {"model": {"preset": "x"}, "training": {"seq_len": 8}}


def page(request: Request, problem: problems.Problem) -> Response | None:
    if request.url.path.startswith("/raise"):
        return Response(f"<h1>{problem.title}</h1>", status_code=problem.status, media_type="text/html")
    return None


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = FastAPI(docs_url=None, redoc_url=None)
    problems.install(app, page)
    middleware.install(app, AppSettings(max_body_bytes=4096, max_json_depth=10), Metrics())

    @app.get("/raise/{name}")
    def fail(name: str) -> None:
        raise ERRORS[name]

    @app.post("/plan")
    def plan(body: Body) -> dict[str, Any]:
        return body.model_dump()

    @app.get("/count")
    def count(limit: int = 1) -> int:
        return limit

    with TestClient(app) as opened:
        yield opened


def post(client: TestClient, content: bytes | str) -> Any:
    return client.post("/plan", content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("invalid", 422, "invalid_request"),
        ("unsupported", 422, "unsupported_model"),
        ("not-found", 404, "not_found"),
        ("conflict", 409, "conflict"),
        ("forbidden", 403, "forbidden"),
        ("unavailable", 503, "unavailable"),
        ("bug", 500, "internal"),
    ],
)
def test_each_error_has_its_status(client: TestClient, name: str, status: int, code: str) -> None:
    """The shape is RFC 9457's, and the id of the request is in the body and in the header."""
    answer = client.get(f"/raise/{name}", headers={"x-request-id": "abc-123"})
    body = answer.json()
    assert answer.status_code == body["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:shardplan:problem:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == answer.headers["x-request-id"] == "abc-123"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_fields_at_fault_are_listed(client: TestClient) -> None:
    """Path, message and hint each by itself, beside the sentence."""
    body = client.get("/raise/invalid").json()
    assert body["errors"] == [{"loc": ["training", "seq_len"], "msg": "seq_len 3 is odd", "hint": "use 4"}]
    assert body["detail"] == "seq_len 3 is odd; use 4"


def test_unavailable_says_when_to_come_back(client: TestClient) -> None:
    """A client may retry by itself."""
    assert int(client.get("/raise/unavailable").headers["retry-after"]) > 0


def test_a_person_gets_a_page_where_there_is_one(client: TestClient) -> None:
    """A browser names HTML first; the same error is JSON to everyone else and where the hook has no page."""
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = client.get("/raise/not-found", headers=browser)
    assert (answer.status_code, answer.text) == (404, "<h1>Not found</h1>")
    assert client.get("/raise/bug", headers=browser).text == "<h1>Something broke here</h1>"
    assert client.get("/nowhere", headers=browser).headers["content-type"] == "application/problem+json"
    assert client.get("/raise/not-found", headers={"accept": "application/json"}).json()["status"] == 404


def test_unknown_paths_and_methods(client: TestClient) -> None:
    """404 names the path, 405 the methods that are possible."""
    assert client.get("/nowhere").json()["detail"] == "there is nothing at /nowhere"
    answer = client.get("/plan")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.headers["content-type"] == "application/problem+json"


def errors_of(client: TestClient, body: Any) -> list[dict[str, Any]]:
    answer = post(client, json.dumps(body))
    assert answer.status_code == 422
    errors: list[dict[str, Any]] = answer.json()["errors"]
    return errors


def test_an_unknown_key_is_answered_with_the_nearest_one(client: TestClient) -> None:
    """At every depth, in lists and inside unions, whose member names are no part of the path."""
    (error,) = errors_of(client, VALID | {"training": {"seq_len": 8, "seqlen": 8}})
    assert error == {
        "loc": ["training", "seqlen"],
        "msg": "training has no key 'seqlen'",
        "hint": "did you mean seq_len?",
    }
    (error,) = errors_of(client, VALID | {"trainig": {}})
    assert (error["loc"], error["hint"]) == (["trainig"], "did you mean training?")
    (error,) = errors_of(client, VALID | {"pools": [{"gpu": "t4"}, {"zzz": 1}]})
    assert (error["loc"], error["hint"]) == (["pools", 1, "zzz"], "pools.1 takes gpu, nodes")
    locs = [error["loc"] for error in errors_of(client, VALID | {"model": {"preset": "x", "num_layer": 2}})]
    assert ["model", "num_layer"] in locs
    assert all("Shape" not in loc and "Preset" not in loc for loc in locs)


def test_wrong_values_are_named_with_the_rule(client: TestClient) -> None:
    """What was given, where, and what it should be."""
    (error,) = errors_of(client, VALID | {"training": {"seq_len": -4}})
    assert error["msg"] == "training.seq_len is -4; it should be greater than 0"
    (error,) = errors_of(client, VALID | {"training": {"seq_len": 8, "precision": "bf61"}})
    assert "training.precision is 'bf61'" in error["msg"]
    assert "'bf16' or 'fp16'" in error["msg"]
    (error,) = errors_of(client, {"model": {"preset": "x"}})
    assert error["msg"] == "training is required"
    (error,) = errors_of(client, VALID | {"training": [1, 2]})
    assert "a list of 2" in error["msg"]


def test_a_field_of_several_kinds_is_one_error(client: TestClient) -> None:
    """What each member of a union wants is joined; the members' names are no part of the path, a dict's keys are."""
    (error,) = errors_of(client, VALID | {"targets": 5})
    assert error["loc"] == ["targets"]
    assert error["msg"] == "targets is 5; it should be 'all' or a valid list"
    assert [e["loc"] for e in errors_of(client, VALID | {"targets": ["a", 1]})] == [["targets"], ["targets", 1]]
    (error,) = errors_of(client, VALID | {"extra": {"key": "many"}})
    assert error["loc"] == ["extra", "key"]
    (error,) = errors_of(client, VALID | {"model": 5})
    assert (error["loc"], error["msg"]) == (["model"], "model is 5; it should be an object")
    (error,) = errors_of(client, VALID | {"training": None})
    assert error["msg"] == "training is null; it should be an object"


def test_query_parameters_are_validated_alike(client: TestClient) -> None:
    """The path of a query parameter is its name."""
    answer = client.get("/count?limit=many")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["limit"]


def test_nothing_huge_is_echoed(client: TestClient) -> None:
    """Neither a long value, a long key, nor a thousand errors come back in full."""
    huge = "x" * 3000
    for body in ({"training": {"seq_len": huge}}, {"training": {"seq_len": 1, huge: 1}}, {huge: 1}):
        answer = post(client, json.dumps(VALID | body))
        assert answer.status_code == 422
        assert len(answer.text) < 1500
    errors = errors_of(client, VALID | {"pools": [{"a": 1}] * 100})
    assert len(errors) == 21
    assert errors[-1]["msg"] == "80 more errors are not shown"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{"model": {"preset": "x"},\n "training": {"seq_len": NaN}}', "line 2, column 26"),
        (b'{"a": Infinity}', "line 1, column 7"),
        (b'{"a": -Infinity}', "line 1"),
        (b'{"a": 1e999}', "line 1, column 7"),
        (b'{"a": 1,}', "line 1, column 8"),
        (b'{"a": "\\ud800"}', "line 1"),
        (b'{"a": "\xff"}', "line 1"),
        (b'{"a"', "line 1, column 5"),
        (b"[" * 2000, "depth limit"),
    ],
)
def test_what_is_not_json_is_told_where(client: TestClient, content: bytes, where: str) -> None:
    """400 with line and column; Python's own extensions of JSON count as mistakes."""
    answer = post(client, content)
    assert answer.status_code == 400
    assert answer.json()["type"] == "urn:shardplan:problem:not_json"
    assert where in answer.json()["detail"]


def test_an_empty_body_is_required_not_broken(client: TestClient) -> None:
    """There is nothing to parse; the body as a whole is missing."""
    answer = post(client, b"")
    assert answer.status_code == 422
    assert answer.json()["detail"] == "the body is required"


def test_nesting_has_a_limit(client: TestClient) -> None:
    """Ten levels pass to the validator, eleven do not, and depth costs no stack."""
    assert post(client, b"[" * 10 + b"]" * 10).json()["type"] == "urn:shardplan:problem:invalid_request"
    answer = post(client, b'{"a":' * 11 + b"1" + b"}" * 11)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:shardplan:problem:too_deep")
