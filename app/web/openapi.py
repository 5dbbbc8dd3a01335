"""The OpenAPI document: what FastAPI cannot know of it, and what settings change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI

from app.services.keys import SCOPES
from app.settings import AppSettings
from app.web.keys import UNLISTED, is_open, rule_for
from app.web.schemas import MAX_PAGE, problems
from app.web.sweeps import body_schemas

Document = dict[str, Any]
_SCHEME = "key"
_PROBES = ("/healthz", "/readyz")


def install(app: FastAPI, settings: AppSettings) -> None:
    """Let ``/openapi.json`` have the body of sweeps, and say what these settings change."""
    changes: list[Callable[[Document], None]] = [_with_sweep_body]
    if settings.require_keys:
        changes.append(_with_keys)
    if not settings.list_plans:
        changes.append(_without_lists)
    if settings.allowed_hosts:
        changes.append(_for_hosts)
    if settings.page_size_max != MAX_PAGE:
        changes.append(lambda document: _page_size(document, settings.page_size_max))
    plain = app.openapi

    def openapi() -> Document:
        if app.openapi_schema is None:
            document = plain()
            for change in changes:
                change(document)
        return plain()

    app.openapi = openapi  # type: ignore[method-assign]


def _with_sweep_body(document: Document) -> None:
    document["components"]["schemas"] |= body_schemas()


def _with_keys(document: Document) -> None:
    scopes = "; ".join(f"{scope}: {meaning}" for scope, meaning in SCOPES.items())
    scheme = {"type": "http", "scheme": "bearer", "bearerFormat": "shp_…", "description": f"A key of this service. Its scopes: {scopes}."}
    document.setdefault("components", {}).setdefault("securitySchemes", {})[_SCHEME] = scheme
    sign_in = {
        "description": "A browser without a key is sent to sign in",
        "headers": {"Location": {"description": "The form that takes a key", "schema": {"type": "string"}}},
    }
    for path, method, operation in _operations(document):
        if is_open(path):
            continue
        scope = rule_for(method.upper(), path) or UNLISTED
        operation["security"] = [{_SCHEME: [scope]}]
        operation["responses"].setdefault("303", sign_in)
        for status, response in problems(401, 403, 503).items():
            known = operation["responses"].setdefault(str(status), response)
            if status == 403:
                also = "" if known is response else f"; {known['description'][0].lower()}{known['description'][1:]}"
                operation["responses"]["403"] = known | {"description": f"The key does not have the scope {scope}{also}"}


def _without_lists(document: Document) -> None:
    response = problems(403)[403] | {"description": "Plans are not listed here"}
    for path, method, operation in _operations(document):
        if (path, method) == ("/plans", "get"):
            operation["responses"]["403"] = response


def _for_hosts(document: Document) -> None:
    for path, _, operation in _operations(document):
        if path not in _PROBES:
            operation["responses"]["421"] = problems(421)[421]


def _page_size(document: Document, most: int) -> None:
    for parameter in document["paths"]["/plans"]["get"]["parameters"]:
        if parameter["name"] == "limit":
            parameter["schema"] |= {"maximum": most, "default": min(most, parameter["schema"]["default"])}


def _operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation
