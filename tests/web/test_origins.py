"""What the settings of a shared network do: host names, https, lists that are off, the size of a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from app.main import create_app
from app.settings import AppSettings
from tests.contract.answers import departures
from tests.faults.service import BODY
from tests.web.test_pages import BASE, HTML, safe

Serve = Callable[..., TestClient]


@pytest.fixture
def serve(settings: AppSettings) -> Any:
    opened: list[TestClient] = []

    def start(address: str = "203.0.113.5", **changes: Any) -> TestClient:
        client = TestClient(create_app(settings.model_copy(update=changes)), client=(address, 1234))
        opened.append(client)
        return client.__enter__()

    yield start
    for client in opened:
        client.__exit__()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("plans.example.org", 200), ("PLANS.example.org:8000", 200), ("plans.example.org.", 200),
        ("a.internal", 200), ("a.b.internal:1", 200), ("[::1]:8000", 200), ("internal", 421), ("evil.example", 421), ("", 421),
        ("plans.example.org.evil.example", 421), ("xinternal", 421),
        ("<script>alert(1)</script>", 421), ("evil.example:plans.example.org", 421),
    ],
)  # fmt: skip
def test_only_the_names_of_the_service_are_answered(serve: Serve, host: str, status: int) -> None:
    """421 as a documented problem, and a page for a browser; probes come by address."""
    client = serve(allowed_hosts="plans.example.org, *.internal,[::1]")
    answer = client.get("/catalog/gpus", headers={"host": host})
    assert answer.status_code == status
    assert departures(client.app.openapi(), "/catalog/{kind}", answer) == []  # type: ignore[attr-defined]
    assert client.get("/healthz", headers={"host": host}).status_code == 200
    page = client.get("/", headers=HTML | {"host": host})
    assert page.status_code == status
    assert (host[:8] in safe(page.text).text) or status == 200
    assert "content-security-policy" in page.headers


@pytest.mark.parametrize("hosts", ["https://a.example", "a.example:80", "a b", "*", "a.example,-"])
def test_names_that_are_none_are_refused_at_start(hosts: str) -> None:
    """With what to write instead."""
    with pytest.raises(ValidationError, match="without a port"):
        AppSettings(allowed_hosts=hosts)


@pytest.mark.parametrize(
    ("address", "said", "https"),
    [
        ("10.0.0.1", "https", True), ("10.0.0.1", "http, https", True), ("10.0.0.1", "https, http", False), ("10.0.0.1", "", False),
        ("203.0.113.5", "https", False),
    ],
)  # fmt: skip
def test_https_is_asked_to_stay(serve: Serve, address: str, said: str, https: bool) -> None:
    """Only where it is spoken: a trusted proxy says so, and addresses in the answers say so too."""
    client = serve(address, trusted_proxies="10.0.0.0/8")
    answer = client.get("/healthz", headers={"x-forwarded-proto": said} if said else {})
    assert answer.headers.get("strict-transport-security") == ("max-age=31536000" if https else None)
    page = client.get("/docs", headers=HTML | {"x-forwarded-proto": said})
    assert ("curl &#39;https://testserver/" in page.text or "curl 'https://testserver/" in page.text) is https


def test_a_service_spoken_to_by_https_says_so(settings: AppSettings) -> None:
    """Without a proxy between."""
    client = TestClient(create_app(settings), base_url="https://testserver")
    assert client.get("/healthz").headers["strict-transport-security"] == "max-age=31536000"
    assert client.get("/healthz").headers["cross-origin-resource-policy"] == "same-origin"


def test_plans_that_are_not_listed_are_read_by_their_address(serve: Serve) -> None:
    """Lists and search are refused with the reason and appear on no page; reading, comparing and files go on."""
    client = serve(list_plans=False)
    kept = [client.post("/plans", json=BODY | {"name": name}).json() for name in "ab"]
    for address in ("/plans", "/plans?q=a", "/plans?cursor=x"):
        answer = client.get(address)
        assert (answer.status_code, "not listed" in answer.json()["detail"]) == (403, True)
        assert kept[0]["id"] not in answer.text
        assert departures(client.app.openapi(), "/plans", answer) == []  # type: ignore[attr-defined]
    path, both = f"/plans/{kept[0]['id']}", f"/plans/compare?ids={kept[0]['id']},{kept[1]['id']}"
    for address in (path, both, f"{path}/launch.sh"):
        assert client.get(address).status_code == 200
    assert client.get("/plans", headers=HTML).status_code == 403
    pages = [client.get(address, headers=HTML) for address in ("/", "/plans", path, both)]
    pages += [client.post(f"{path}/replan", headers=HTML), client.post("/save", data=BASE, headers=HTML)]
    for page in pages:
        assert not any(attrs.get("href") == "/plans" for _, attrs in safe(page.text).tags)
    assert "Everyone who has its address can read a saved plan." in pages[0].text
    assert client.get("/plans/none").status_code == 404


@pytest.mark.parametrize("most", [5, 100, 300])
def test_the_size_of_a_page_is_what_the_setting_says(serve: Serve, most: int) -> None:
    """The same bound in the document, in what is refused and in what is given without one."""
    client = serve(page_size_max=most)
    (limit,) = (p["schema"] for p in client.get("/openapi.json").json()["paths"]["/plans"]["get"]["parameters"] if p["name"] == "limit")
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, most, min(most, 20))
    assert [client.get("/plans", params={"limit": n}).status_code for n in (0, 1, most, most + 1)] == [422, 200, 200, 422]
    assert client.get("/plans", params={"limit": most + 1}).json()["errors"][0]["loc"] == ["limit"]
    for _ in range(6):
        client.app.state.saved_plans.save({"cluster": {"pools": []}}, {"engine_version": "1", "verdict": "fits", "model": {"name": ""}})  # type: ignore[attr-defined]
    assert len(client.get("/plans").json()["items"]) == min(most, 6)
