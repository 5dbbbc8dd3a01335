"""Requests with each verdict, a service to ask, and the command."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.services.plan import planned
from app.services.request import PlanRequest
from app.settings import AppSettings
from tests.faults.service import BODY
from tests.served import served

ZERO: dict[str, Any] = BODY | {"constraints": {"framework": "deepspeed", "strategy": "zero1"}}
MOST = 512


def sized(micro_batch: int) -> dict[str, Any]:
    return ZERO | {"training": ZERO["training"] | {"micro_batch": micro_batch}}


@pytest.fixture(scope="session")
def by_verdict() -> dict[str, dict[str, Any]]:
    """A request that fits, one that is tight and one that does not fit: the same with larger and larger batches."""
    found: dict[str, dict[str, Any]] = {}
    for micro_batch in (1, *range(MOST, 0, -8)):
        body = sized(micro_batch)
        found.setdefault(planned(PlanRequest.model_validate(body)).plan.verdict, body)
        if len(found) == 3:
            return found
    raise AssertionError(f"only {', '.join(found)} were found")


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Writes a request to a file."""

    def write(body: dict[str, Any]) -> str:
        path = tmp_path / "spec.json"
        path.write_text(json.dumps(body))
        return str(path)

    return write


@pytest.fixture(scope="package")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running service with a SQLite file of its own."""
    file = tmp_path_factory.mktemp("served") / "service.db"
    with served(AppSettings(database_url=f"sqlite:///{file}", log_format="text")) as address:
        yield address


@pytest.fixture(autouse=True)
def _the_service_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in this process, and what it logs would be taken for what the command writes to standard error, or go to where
    another test's standard error was."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


@pytest.fixture(autouse=True)
def _no_service_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHARDPLAN_URL", "SHARDPLAN_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["here", "against"])
def where(request: pytest.FixtureRequest) -> list[str]:
    """Options for planning here, and for having the service plan."""
    return [] if request.param == "here" else ["--against", request.getfixturevalue("url")]
