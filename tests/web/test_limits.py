"""Rates: a client that asks too often is told when to come back, others are not in its way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from app.main import create_app
from app.settings import AppSettings
from app.web.limits import client_of, networks_of
from tests.contract.answers import departures

Serve = Callable[..., TestClient]


@pytest.fixture
def serve(settings: AppSettings) -> Serve:
    def start(address: str = "203.0.113.5", **changes: str) -> TestClient:
        return TestClient(create_app(settings.model_copy(update=changes)), client=(address, 1234))

    return start


def test_there_is_no_limit_by_default(serve: Serve) -> None:
    """Nothing is counted and no header speaks of it."""
    client = serve()
    answers = [client.get("/catalog/gpus") for _ in range(30)]
    assert {answer.status_code for answer in answers} == {200}
    assert not any(name.startswith("ratelimit") for name in answers[-1].headers)


def test_a_client_is_told_how_many_are_left_and_when_to_come_back(serve: Serve) -> None:
    """429 as a documented problem with Retry-After, the security headers and an id; a browser gets a page."""
    client = serve(rate_limit="3/hour")
    left = [client.get("/catalog/gpus").headers["ratelimit-remaining"] for _ in range(3)]
    assert left == ["2", "1", "0"]
    refused = client.get("/catalog/gpus")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:shardplan:problem:too_many_requests"
    assert 3590 <= int(refused.headers["retry-after"]) <= 3600
    names = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")
    assert [refused.headers[name] for name in names] == ["3", "0", refused.headers["retry-after"]]
    assert refused.headers["x-request-id"] == refused.json()["request_id"]
    assert "content-security-policy" in refused.headers
    assert departures(client.app.openapi(), "/catalog/{kind}", refused) == []  # type: ignore[attr-defined]
    page = client.get("/", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (429, "text/html; charset=utf-8")


def test_the_strictest_of_several_rates_counts(serve: Serve) -> None:
    """The answer speaks of the one that refuses."""
    client = serve(rate_limit="100/second;2/hour")
    statuses = [client.get("/catalog/models").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert client.get("/catalog/models").headers["ratelimit-limit"] == "2"


def test_operations_are_not_counted(serve: Serve) -> None:
    """Probes and scrapes go on while their address is refused."""
    client = serve(rate_limit="1/hour")
    assert [client.get("/plan").status_code for _ in range(2)] == [405, 429]
    for path in ("/healthz", "/metrics", "/static/app.css"):
        assert client.get(path).status_code == 200


def test_clients_behind_a_trusted_proxy_are_told_apart(serve: Serve) -> None:
    """Each by the address the proxy adds; what a client writes in front of it changes nothing."""
    client = serve("10.0.0.1", rate_limit="1/hour", trusted_proxies="10.0.0.0/8")

    def status(forwarded: str) -> int:
        return client.get("/catalog/gpus", headers={"x-forwarded-for": forwarded}).status_code

    assert [status("198.51.100.7"), status("198.51.100.8")] == [200, 200]
    assert [status("198.51.100.7"), status("1.2.3.4, 198.51.100.7"), status("198.51.100.8, 10.0.0.2")] == [429, 429, 429]


def test_an_untrusted_peer_cannot_name_another(serve: Serve) -> None:
    """Without the setting the header is not read."""
    client = serve(rate_limit="1/hour")
    given = [{"x-forwarded-for": f"198.51.100.{n}"} for n in range(2)]
    assert [client.get("/catalog/gpus", headers=headers).status_code for headers in given] == [200, 429]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.5", "", "203.0.113.5/32"),
        ("2001:db8:1:2:3::4", "", "2001:db8:1:2::/64"),
        ("10.0.0.1", "", "10.0.0.1/32"),
        ("10.0.0.1", "nonsense", "10.0.0.1/32"),
        ("10.0.0.1", "8.8.8.8, 10.0.0.9, 10.0.0.2", "10.0.0.9/32"),
        ("10.0.0.1", "8.8.8.8, 10.0.0.2", "8.8.8.8/32"),
        ("testclient", "8.8.8.8", "testclient"),
    ],
)
def test_the_client_of_a_request(peer: str, forwarded: str, client: str) -> None:
    """Hops are read from the nearest outwards, as far as they are trusted; an IPv6 site is one client."""
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    scope = {"type": "http", "client": (peer, 1), "headers": headers}
    assert client_of(scope, networks_of("10.0.0.1, 10.0.0.2")) == client


@pytest.mark.parametrize("changes", [{"rate_limit": "often"}, {"rate_limit": "0/minute"}, {"trusted_proxies": "the proxy"}])
def test_settings_that_cannot_be_read_are_refused(changes: dict[str, str]) -> None:
    """At start."""
    with pytest.raises(ValidationError, match=r"rates such as|does not appear to be an IPv4"):
        AppSettings(**changes)  # type: ignore[arg-type]
