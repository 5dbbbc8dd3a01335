"""What a body must say it is: JSON endpoints read JSON and nothing else, and no body comes back in an answer."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from app.web.schemas import EXAMPLE_REQUEST

JSON_ENDPOINTS = ("/plan", "/plan/launch.sh", "/plans")
SECRET = b'{"password": "hunter2"}'


@pytest.mark.parametrize("path", JSON_ENDPOINTS)
@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", ""]
)
def test_a_body_of_another_type_is_refused(client: TestClient, path: str, content_type: str | None) -> None:
    """415 that names Content-Type, what was given and what to send; the body's bytes stay out of the answer."""
    headers = {} if content_type is None else {"content-type": content_type}
    answer = client.post(path, content=SECRET, headers=headers)
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["accept"] == "application/json"
    (error,) = answer.json()["errors"]
    assert error["loc"] == ["Content-Type"]
    assert error["hint"] == "send Content-Type: application/json"
    assert (content_type or "has no Content-Type") in error["msg"]
    assert "hunter2" not in answer.text


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON", "application/json; charset=utf-8", "APPLICATION/VND.SHARDPLAN+JSON;v=1"]
)
def test_json_is_json_however_it_is_spelled(client: TestClient, content_type: str) -> None:
    """Media types have no case, and one that ends in +json is JSON: both the endpoint and the guard before it know."""
    body = json.dumps(EXAMPLE_REQUEST).encode()
    headers = {"content-type": content_type}
    assert client.post("/plan", content=body, headers=headers).status_code == 200
    broken = client.post("/plan", content=body.replace(b"8192", b"NaN"), headers=headers)
    assert (broken.status_code, broken.json()["type"]) == (400, "urn:shardplan:problem:not_json")
    deep = client.post("/plan", content=b'{"model": ' + b"[" * 100 + b"]" * 100 + b"}", headers=headers)
    assert (deep.status_code, deep.json()["type"]) == (422, "urn:shardplan:problem:too_deep")


@pytest.mark.parametrize("path", JSON_ENDPOINTS)
def test_no_body_is_a_missing_one(client: TestClient, path: str) -> None:
    """Without a body there is no type to complain about."""
    answer = client.post(path)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "the body is required"


def test_forms_are_still_read(client: TestClient) -> None:
    """The pages post forms, which the JSON endpoints alone refuse."""
    fields = {"model": "llama-3.1-8b", "seq_len": "8192", "gpu": "h100-sxm-80gb"}
    assert client.post("/", data=fields).status_code == 200
    assert client.post("/download/launch.sh", data=fields).status_code == 200
    assert client.post("/save", data=fields).status_code == 201
