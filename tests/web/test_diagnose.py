"""The page and the JSON of a diagnosis: one address, asked by a form or by JSON, answered as the client prefers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.web.diagnosing import EXAMPLES

HTML = {"accept": "text/html"}
FIELDS = {"log": "CUDA out of memory. Tried to allocate 12.94 GiB", "model": "llama-3.1-8b", "gpu": "a100-sxm-80gb", "strategy": "zero2"}
BODY: dict[str, Any] = EXAMPLES["a log with its request"]["value"]


def test_json_has_the_fields_of_the_contract(client: TestClient) -> None:
    """Under their names, and nothing is kept."""
    answer = client.post("/diagnose", json=BODY)
    assert answer.status_code == 200
    found = answer.json()
    names = {"cause", "device", "moment", "tensor", "confidence_frac", "remedies", "would_not_help", "missing"}
    assert names <= found.keys()
    assert {"name", "bytes", "arithmetic"} <= found["tensor"].keys()
    assert {"settings", "frees_bytes", "step_s_change", "enough"} <= found["remedies"][0].keys()
    assert found["tensor"]["arithmetic"] == "P × 4 / 4 ranks = 13.90e9 × 4 / 4"


def test_a_form_is_answered_with_a_page(client: TestClient) -> None:
    """Cause, tensor, remedies and what is missing, over the form as it was filled in; with JSON for who prefers that."""
    page = client.post("/diagnose", data=FIELDS, headers=HTML)
    assert page.status_code == 200
    for heading in ("The tensor", "What helps, the cheapest that is enough first", "What is missing, and what gives it"):
        assert heading in page.text
    assert 'value="llama-3.1-8b"' in page.text
    assert "Tried to allocate 12.94 GiB</textarea>" in page.text
    twin = client.post("/diagnose", data=FIELDS)
    assert twin.headers["content-type"] == "application/json"
    assert "Accept" in twin.headers["vary"].split(", ")
    assert twin.json()["cause"] in page.text.replace("&#39;", "'")


def test_json_is_answered_with_a_page_too(client: TestClient) -> None:
    """Where HTML is preferred."""
    page = client.post("/diagnose", json=BODY, headers=HTML)
    assert page.headers["content-type"].startswith("text/html")
    assert "fp32 optimizer partition" in page.text


def test_the_empty_form(client: TestClient) -> None:
    """Has a label for every field, and a place in the navigation."""
    page = client.get("/diagnose", headers=HTML).text
    assert 'aria-current="page">Diagnose' in page
    fields = re.findall(r'<(?:input|select|textarea) [^>]*id="([^"]+)"', page)
    assert {"f-log", "f-peak", "f-step_s", "f-model", "f-gpu", "f-strategy", "f-inter_node_gbit_per_s"} <= set(fields)
    assert {f for f in fields if f'<label for="{f}"' not in page} == set()


def test_a_file_is_read_as_the_log(client: TestClient) -> None:
    """It takes the place of the text."""
    sent = {key: value for key, value in FIELDS.items() if key != "log"}
    found = client.post("/diagnose", data=sent, files={"log_file": ("run.log", b"Tried to allocate 12.94 GiB\n")}).json()
    assert found["read"]["requested_bytes"] == round(12.94 * 2**30)


def test_the_form_in_an_address(client: TestClient) -> None:
    """A short log can be a link, and a peak be written with its unit."""
    found = client.get(
        "/diagnose", params={"peak": "71.2 GiB", "counter": "reserved", "model": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}
    ).json()
    assert found["read"]["peak_bytes"] == round(71.2 * 2**30)
    assert "reserved" in found["cause"]


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"log": "x", "seq_len": "lots"}, "seq_len"),
        ({"peak": "much"}, "peak"),
        ({"step_s": "-1"}, "step_s"),
        ({"log": ""}, "log"),
        ({"log": "x", "model": "lama", "gpu": "h100-sxm-80gb"}, "model"),
        ({"log": "x", "gpus_per_node": "8"}, "gpu"),
        ({"log": "x", "counter": "none"}, "counter"),
        ({"log": "x" * 200_001}, "log"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(client: TestClient, fields: dict[str, str], at: str) -> None:
    """422 with a list that leads there; as JSON a problem."""
    page = client.post("/diagnose", data=fields, headers=HTML)
    assert page.status_code == 422
    assert f'href="#f-{at}"' in page.text
    assert f'id="e-{at}"' in page.text
    assert client.post("/diagnose", data=fields).headers["content-type"] == "application/problem+json"


def test_what_a_log_holds_is_escaped(client: TestClient) -> None:
    """It is text, whatever it looks like."""
    log = "Tried to allocate 3 GiB <script>alert(1)</script> one <b>task</b> held 5 GB"
    page = client.post("/diagnose", data={"log": log}, headers=HTML).text
    assert "<script>alert" not in page
    assert "<b>task" not in page


def test_other_fields_of_a_plan_are_taken_along(client: TestClient) -> None:
    """Those the form does not show are kept in it, so that asking again asks the same."""
    page = client.post("/diagnose", data=FIELDS | {"tensor_parallel": "2"}, headers=HTML).text
    assert '<input type="hidden" name="tensor_parallel" value="2">' in page


def test_unknown_keys_are_answered_with_the_nearest(client: TestClient) -> None:
    """In the question and in its request."""
    for body, hint in (({"txt": "x"}, "text"), ({"text": "x", "request": {"trainig": {}}}, "training")):
        answer = client.post("/diagnose", json=body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["hint"] == f"did you mean {hint}?"
