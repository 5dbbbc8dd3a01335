"""A service that requires keys, for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.main import create_app
from app.services.keys import SCOPES, Keys
from app.settings import AppSettings

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Keyed(TestClient):
    """A client that follows no redirect, and makes keys of the scopes it needs."""

    app: FastAPI

    def __init__(self, app: FastAPI, **given: Any) -> None:
        super().__init__(app, follow_redirects=False, raise_server_exceptions=False, **given)
        self.keys = Keys(app.state.database)

    def key(self, *scopes: str) -> str:
        """A new key; of every scope where none is named."""
        return self.keys.create("test", scopes or SCOPES).text

    def bearing(self, *scopes: str) -> dict[str, str]:
        """The header of a new key."""
        return {"authorization": f"Bearer {self.key(*scopes)}"}


@contextmanager
def keyed(settings: AppSettings, address: str = "203.0.113.5", **changes: Any) -> Iterator[Keyed]:
    """A started service that requires keys."""
    app = create_app(settings.model_copy(update={"require_keys": True} | changes))
    with Keyed(app, client=(address, 1234)) as opened:
        yield opened


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """Method and path of every route, however the routers are nested."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner.routes)
        else:
            yield from ((method, route.path) for method in getattr(route, "methods", None) or ())
