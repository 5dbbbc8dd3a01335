"""The API reference, made from the OpenAPI document on the server: nothing is fetched from elsewhere, no script runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from app.web.rendering import page

router = APIRouter(include_in_schema=False)
Schema = Mapping[str, Any]
_FIRST = ("plan", "saved plans", "catalogue")


@router.get("/docs")
def get_docs(request: Request) -> Response:
    """Routes, what they take and give, with a line to paste into a shell."""
    document = request.app.openapi()
    schemas = document.get("components", {}).get("schemas", {})
    origin = str(request.base_url).rstrip("/")
    groups: dict[str, list[dict[str, Any]]] = {tag: [] for tag in _FIRST}
    for operation in _operations(document, origin):
        groups.setdefault(operation["tag"], []).append(operation)
    operations = [operation for listed in groups.values() for operation in listed]
    seen: set[str] = set()
    for operation in operations:  # the same example again is told by its curl line
        operation["example"], given = ("" if operation["example"] in seen else operation["example"]), operation["example"]
        seen.add(given)
    shown = list(_reachable(schemas, (operation["body"] for operation in operations)))
    answers = [name for name in _reachable(schemas, (operation["answer"] for operation in operations)) if name not in shown]
    tables = [
        {"name": name, "description": schemas[name].get("description", ""), "fields": list(_fields(schemas[name]))}
        for name in (*shown, *answers)
    ]
    return page(request, "docs.html", groups=groups, tables=tables, version=document["info"]["version"])


def _operations(document: Schema, origin: str) -> Iterator[dict[str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            example = next((shown["value"] for shown in body.get("examples", {}).values()), None)
            ok: Schema = next((answer for status, answer in operation["responses"].items() if status.startswith("2")), {})
            yield {
                "id": operation["operationId"],
                "method": method.upper(),
                "path": path,
                "summary": operation.get("summary", ""),
                "description": operation.get("description", "").replace("``", ""),
                "tag": (operation.get("tags") or ["pages"])[0],
                "parameters": [
                    _field(p["name"], p["schema"], required=p.get("required", False), note=p.get("description", ""), place=p["in"])
                    for p in operation.get("parameters", [])
                ],
                "body": _reference(body.get("schema", {})),
                "example": json.dumps(example, indent=2) if example else "",
                "curl": _curl(method.upper(), origin + path, example, keyed="security" in operation),
                "answer": _reference(ok.get("content", {}).get("application/json", {}).get("schema", {})),
                "problems": [
                    {"status": s, "what": a.get("description", "")} for s, a in operation["responses"].items() if not s.startswith("2")
                ],
            }


def _curl(method: str, url: str, example: Any, *, keyed: bool) -> str:
    implied = "GET" if example is None else "POST"  # curl posts where there is something to post
    parts = ["curl"] + ([f"-X {method}"] if method != implied else []) + [f"'{url}'"]
    parts += ["-H 'Authorization: Bearer shp_…'"] if keyed else []
    if example is not None:
        parts += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(example)}'"]
    if method == "DELETE":
        parts.append("-H 'Edit-Token: …'")
    return " ".join(parts)


def _reference(schema: Schema) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _reachable(schemas: Schema, roots: Iterator[str]) -> Iterator[str]:
    """Schemas that the roots use, each once, in the order they are met."""
    queue, seen = [root for root in roots if root], set[str]()
    while queue:
        name = queue.pop(0)
        if name in seen or name not in schemas:
            continue
        seen.add(name)
        yield name
        queue += [found for field in schemas[name].get("properties", {}).values() for found in _references(field)]


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield _reference(schema)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _fields(schema: Schema) -> Iterator[dict[str, Any]]:
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        yield _field(name, field, required=name in required, note=field.get("description", ""))


def _field(name: str, schema: Schema, *, required: bool, note: str, place: str = "") -> dict[str, Any]:
    default = schema.get("default")
    return {
        "name": name,
        "type": _type(schema),
        "links": sorted(set(_references(schema))),
        "required": required,
        "note": note.replace("``", ""),
        "place": place,
        "default": "" if default is None else json.dumps(default),
        "example": ", ".join(json.dumps(e) for e in schema.get("examples", [])),
    }


def _type(schema: Schema) -> str:
    """A type in words: ``integer from 1``, ``bf16 | fp16``, ``list of PoolIn``."""
    if "$ref" in schema:
        return _reference(schema)
    if "anyOf" in schema:
        return " or ".join(_type(member) for member in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return " ".join([kind, *(f"{word} {schema[key]:,}" for key, word in bounds.items() if key in schema)])
