"""The client is the OpenAPI document in Python: every route, parameter, body and answer, with the same types."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from fastapi.testclient import TestClient

from app.client import Client, operations
from app.client.operations import Answered, Operation
from app.main import create_app
from app.settings import AppSettings
from app.web.schemas import DialectName, FileName

OPERATIONS: dict[str, Operation] = {name: found for name, found in vars(operations).items() if isinstance(found, Operation)}
METHODS = {
    "PLAN": Client.plan, "PLAN_FILE": Client.plan_file, "SAVE": Client.save, "PLANS": Client.plans, "GET": Client.get,
    "FILE": Client.file, "DELETE": Client.delete, "REPLAN": Client.replan, "COMPARE": Client.compare, "CATALOG": Client.catalog,
    "DIAGNOSE": Client.diagnose,
    "READY": Client.ready, "AUDIT": Client.audit, "SWEEP": Client.sweep, "GET_SWEEP": Client.get_sweep, "SWEEP_RESULTS": Client.sweep_rows,
    "MEASURE": Client.measure, "MEASUREMENTS": Client.measurements, "DELETE_MEASUREMENT": Client.delete_measurement,
    "CANCEL_SWEEP": Client.cancel_sweep, "DELETE_SWEEP": Client.delete_sweep,
}  # fmt: skip
ABSENT = {
    ("get", "/healthz"): "an orchestrator asks it; ready() says more",
    ("get", "/metrics"): "Prometheus reads it, in a format of its own",
    ("get", "/plans/{plan_id}/report"): "a page to print; its twin in JSON is the plan, which get() gives",
    ("get", "/plans/{plan_id}/charts/{name}.{format}"): "pictures of what get() gives in numbers",
    ("get", "/charts/{name}.{format}"): "pictures, asked for with the fields of the form",
}
"""Routes without a method, each for a reason."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What the service publishes; no test changes it."""
    found: dict[str, Any] = TestClient(create_app(AppSettings(log_format="text"))).get("/openapi.json").json()
    return found


def documented(document: dict[str, Any], operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = document["paths"][operation.path][operation.method.lower()]
    return found


def named(content: dict[str, Any]) -> str | None:
    """Name of the component that a body or answer has as its schema; None where it has one of its own."""
    reference = content.get("application/json", {}).get("schema", {}).get("$ref")
    return reference.rpartition("/")[2] if reference else None


def test_every_route_has_a_method_or_a_reason_to_have_none(document: dict[str, Any]) -> None:
    """And the client asks for nothing that is not there."""
    routes = {(method, path) for path, found in document["paths"].items() for method in found}
    assert {(o.method.lower(), o.path) for o in OPERATIONS.values()} | ABSENT.keys() == routes
    assert not {(o.method.lower(), o.path) for o in OPERATIONS.values()} & ABSENT.keys()
    assert METHODS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_parameters_are_those_of_the_document(document: dict[str, Any], name: str) -> None:
    """In path, query and headers; the client leaves none of them out but those of pages."""
    operation = OPERATIONS[name]
    found: dict[str, set[str]] = {"path": set(), "query": set(), "header": set()}
    for parameter in documented(document, operation).get("parameters", ()):
        found[parameter["in"]].add(parameter["name"].lower())
    assert set(operation.query) == found["query"] - {"lang"}  # the language of pages; what the client reads is English
    assert {header.lower() for header in operation.headers} == found["header"]
    assert {part[1:-1] for part in operation.path.split("/") if part.startswith("{")} == found["path"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_bodies_and_answers_are_those_of_the_document(document: dict[str, Any], name: str) -> None:
    """The same model by name and by its fields, and the method says that it returns it."""
    operation = OPERATIONS[name]
    found = documented(document, operation)
    body = found.get("requestBody", {}).get("content", {})
    assert named(body) == (operation.body.__name__ if operation.body else None)
    sent = {"application/json"} if operation.body else set()
    assert set(body) == sent | ({operation.or_lines} if operation.or_lines else set())
    success = {status: answer for status, answer in found["responses"].items() if status < "300"}
    answers = {named(answer.get("content", {})) for answer in success.values()}
    assert answers == {operation.answer.__name__ if isinstance(operation, Answered) else None}
    hint = get_type_hints(METHODS[name])["return"]
    if isinstance(operation, Answered):
        fields = document["components"]["schemas"][operation.answer.__name__]["properties"]
        assert set(operation.answer.model_fields) == set(fields)
        page = name == "PLANS"  # whose method gives the items of every page
        assert hint is operation.answer or (page and get_args(hint) == get_args(operation.answer.model_fields["items"].annotation))
    elif set(success) == {"204"}:
        assert hint is type(None)
    elif operation.streamed:
        assert hint == Iterator[dict[str, Any]]
    else:
        assert hint is str or name == "READY"


@pytest.mark.parametrize("name", [name for name, operation in OPERATIONS.items() if operation.body])
def test_a_body_has_the_fields_of_the_document(document: dict[str, Any], name: str) -> None:
    """No more, no fewer."""
    body = OPERATIONS[name].body
    assert body is not None
    assert set(body.model_fields) == set(document["components"]["schemas"][body.__name__]["properties"])


def test_words_to_choose_from_are_those_of_the_document(document: dict[str, Any]) -> None:
    """Files, dialects, catalogues, and what rows hold and how they are written."""
    routes = document["paths"]
    by_name = {p["name"]: p["schema"].get("enum") for p in routes["/plan/{file}"]["post"]["parameters"]}
    assert by_name == {"file": list(get_args(FileName)), "dialect": list(get_args(DialectName))}
    detail = {p["name"]: p["schema"].get("enum") for p in routes["/sweeps"]["post"]["parameters"]}["detail"]
    assert list(get_args(get_type_hints(Client.sweep)["detail"])) == list(get_args(get_type_hints(Client.sweep_lines)["detail"])) == detail
    results = routes["/sweeps/{sweep_id}/results"]["get"]
    assert set(results["responses"]["200"]["content"]) == {"application/jsonl", "text/csv"}
    assert {p["name"]: p["schema"].get("enum") for p in results["parameters"]}["format"] == ["jsonl", "csv"]
    asked = {p["name"]: p["schema"].get("enum") for p in routes["/catalog/{kind}"]["get"]["parameters"]}
    hints = get_type_hints(Client.catalog)
    assert list(get_args(hints["kind"])) == asked["kind"]
    assert list(get_args(get_args(hints["order"])[0])) == asked["order"]


def test_every_method_has_types_and_words() -> None:
    """For mypy, and for people."""
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        assert method.__doc__ or name.startswith("_"), name
        hints = get_type_hints(method)
        assert set(inspect.signature(method).parameters) - {"self"} <= set(hints), name
        assert "return" in hints, name
