"""A service with keys keeps what its own document promises, with a key, with one that may too little, and without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from app.main import create_app
from app.services.keys import SCOPES
from app.settings import AppSettings
from app.web.keys import is_open
from tests.contract.answers import departures
from tests.web.keyed import HTML, Keyed, keyed

KEYED: dict[str, Any] = create_app(AppSettings(log_format="text", require_keys=True, list_plans=False)).openapi()
PLAIN: dict[str, Any] = create_app(AppSettings(log_format="text")).openapi()
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(KEYED).get_all_operations()]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    path = tmp_path_factory.mktemp("keyed") / "service.db"
    given_ = AppSettings(database_url=f"sqlite:///{path}", log_format="text", log_level="ERROR", list_plans=False)
    with keyed(given_) as opened:
        yield opened


@pytest.fixture(scope="module")
def senders(service: Keyed) -> list[dict[str, str]]:
    """Headers with every scope, with each one, with a wrong key and with none."""
    one = [service.bearing(scope) for scope in SCOPES]
    return [service.bearing(), *one, {"authorization": "Bearer shp_0123456789ab_" + "A" * 43}, {}, HTML]


@seed(1)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_schemathesis_finds_nothing(service: Keyed, senders: list[dict[str, str]], data: st.DataObject) -> None:
    """Every answer is in the document; without a key nothing else is than to be told so."""
    operation = data.draw(st.sampled_from(OPERATIONS))
    headers = data.draw(st.sampled_from(senders))
    case = data.draw(operation.as_strategy())
    sent = case.as_transport_kwargs(base_url="http://testserver")
    given_ = {key: value for key, value in sent["headers"].items() if value is not None and key.lower() not in ("authorization", "accept")}
    body = {"content" if isinstance(sent.get("data"), bytes) else "data": sent.get("data"), "json": sent.get("json")}
    answer = service.request(sent["method"], sent["url"], params=sent.get("params"), headers=given_ | headers, **body)
    assert departures(KEYED, operation.path, answer) == []
    if "authorization" not in headers and not is_open(operation.path):
        assert answer.status_code == (303 if headers else 401)


def test_what_keys_add_to_the_document() -> None:
    """A bearer scheme, the scope of each operation, 401 and 403; without keys no word of it."""
    assert KEYED["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, methods in KEYED["paths"].items():
        for operation in methods.values():
            statuses = set(operation["responses"])
            assert ("security" in operation) is ({"401", "403", "303"} <= statuses) is (not is_open(path)), path
    scopes = {(m, p): o["security"][0]["key"] for p, methods in KEYED["paths"].items() for m, o in methods.items() if "security" in o}
    assert scopes["post", "/plan"] == ["plan"]
    assert scopes["delete", "/plans/{plan_id}"] == ["write"]
    assert scopes["get", "/metrics"] == ["admin"]
    both = KEYED["paths"]["/plans/{plan_id}"]["delete"]["responses"]["403"]["description"]
    assert both == "The key does not have the scope write; the edit token is another one"
    assert "securitySchemes" not in PLAIN["components"]
    every = [o for methods in PLAIN["paths"].values() for o in methods.values()]
    assert not any({"401", "421"} & set(o["responses"]) or "security" in o for o in every)


def test_the_reference_shows_how_to_send_a_key(service: Keyed) -> None:
    """On the page people copy their first request from."""
    page = service.get("/docs", headers=HTML | service.bearing("plan")).text
    assert page.count("Authorization: Bearer shp_") == len(
        [o for methods in KEYED["paths"].values() for o in methods.values() if "security" in o]
    )
