"""Generated requests, good and bad: never a 500, and every answer is one that the OpenAPI document promises.

``make fuzz`` sends thousands; ``SHARDPLAN_FUZZ_CASES`` says how many for each test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from app.main import create_app
from app.settings import AppSettings
from tests.contract.answers import departures
from tests.contract.questions import of_document

CASES = int(os.environ.get("SHARDPLAN_FUZZ_CASES", "100"))
SEED = int(os.environ.get("SHARDPLAN_FUZZ_SEED", "1"))
DOCUMENT: dict[str, Any] = create_app(AppSettings(log_format="text")).openapi()
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]
POSTS = [("/plan", "/plan"), ("/plan/{file}", "/plan/launch.sh"), ("/plans", "/plans")]
generated = settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One service for all cases; a fault is answered with 500, not raised into the test."""
    path = tmp_path_factory.mktemp("generated") / "service.db"
    app = create_app(AppSettings(database_url=f"sqlite:///{path}", log_format="text", log_level="ERROR"))
    with TestClient(app, raise_server_exceptions=False) as opened:
        yield opened


@seed(SEED)
@generated
@given(data=st.data())
def test_requests_within_the_bounds_are_planned_or_refused(service: TestClient, data: st.DataObject) -> None:
    """Whole requests with catalogue names and figures at the bounds, a third of them with one thing wrong."""
    route, path = data.draw(st.sampled_from(POSTS))
    body = data.draw(of_document(DOCUMENT, "SaveRequest" if route == "/plans" else "PlanRequest", most_pools=1))
    answer = service.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert departures(DOCUMENT, route, answer) == []


@seed(SEED)
@generated
@given(data=st.data())
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=str)
def test_schemathesis_finds_nothing(service: TestClient, mode: schemathesis.GenerationMode, data: st.DataObject) -> None:
    """What schemathesis makes of the document, conforming or not, over every route."""
    able = [operation for operation in OPERATIONS if mode is schemathesis.GenerationMode.POSITIVE or operation.body or operation.query]
    operation = data.draw(st.sampled_from(able))
    case = data.draw(operation.as_strategy(generation_mode=mode))
    sent = case.as_transport_kwargs(base_url="http://testserver")
    headers = {key: value for key, value in sent["headers"].items() if value is not None}
    body = {"content" if isinstance(sent.get("data"), bytes) else "data": sent.get("data"), "json": sent.get("json")}
    answer = service.request(sent["method"], sent["url"], params=sent.get("params"), headers=headers, **body)
    assert departures(DOCUMENT, operation.path, answer) == []
