"""Signing in and out of the pages, without a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.settings import AppSettings
from app.web.origins import local_path
from tests.faults.service import BODY
from tests.web.keyed import HTML, Keyed, keyed
from tests.web.test_pages import BASE, Tags, safe


@pytest.fixture
def client(settings: AppSettings) -> Iterator[Keyed]:
    with keyed(settings) as opened:
        yield opened


def test_a_browser_is_sent_to_sign_in_and_back(client: Keyed) -> None:
    """With the address it wanted; the cookie is for this site alone and out of reach of scripts."""
    asked = client.get("/plans?q=a%26b", headers=HTML)
    assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?next=%2Fplans%3Fq%3Da%2526b")
    form = client.get(asked.headers["location"], headers=HTML)
    page = safe(form.text)
    assert form.headers["cache-control"] == "no-store"
    assert page.by_id("key")["type"] == "password"
    hidden = next(attrs["value"] for tag, attrs in page.tags if attrs.get("name") == "next")
    assert hidden == "/plans?q=a%26b"
    assert "Sign out" not in form.text
    done = client.post("/sign-in", data={"key": f" {client.key()} ", "next": hidden}, headers=HTML)
    assert (done.status_code, done.headers["location"]) == (303, "/plans?q=a%26b")
    cookie = done.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("shardplan_key=shp_", "httponly", "samesite=strict", "path=/", "max-age=43200"))
    assert "secure" not in cookie
    listed = client.get("/plans?q=a%26b", headers=HTML)
    assert listed.status_code == 200
    assert "Sign out" in safe(listed.text).text
    assert client.get("/", headers=HTML).status_code == 200
    out = client.post("/sign-out", headers=HTML)
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert client.get("/plans", headers=HTML).status_code == 303


def test_by_https_the_cookie_never_leaves_it(settings: AppSettings) -> None:
    """Secure, under a name only this host can set, where the request came by https or a trusted proxy says so."""
    with keyed(settings, "10.0.0.1", trusted_proxies="10.0.0.1") as client:
        said = HTML | {"x-forwarded-proto": "https"}
        cookie = client.post("/sign-in", data={"key": client.key()}, headers=said).headers["set-cookie"]
        assert cookie.startswith("__Host-shardplan_key=")
        assert "; Secure" in cookie
        assert client.get("/plans", headers=HTML | {"cookie": cookie.partition(";")[0]}).status_code == 303
        assert client.get("/plans", headers=said | {"cookie": cookie.partition(";")[0]}).status_code == 200
        out = client.post("/sign-out", headers=said).headers["set-cookie"]
        assert out.startswith('__Host-shardplan_key=""; ')
        assert "; Secure" in out
    with keyed(settings, "203.0.113.5", trusted_proxies="10.0.0.1") as client:
        assert "Secure" not in client.post("/sign-in", data={"key": client.key()}, headers=said).headers["set-cookie"]


@pytest.mark.parametrize(
    "to",
    ["//evil.example", "https://evil.example/", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "/a\r\nSet-Cookie: b=c", "",
     " //evil.example", "/\t/evil.example", "evil.example", "/" + "x" * 2000, "/\u2028", "/\u202egpj"],
)  # fmt: skip
def test_signing_in_leads_to_no_other_site(client: Keyed, to: str) -> None:
    """What is no path of this service is left out, in the form as after it."""
    assert local_path(to) == "/"
    page = Tags(client.get("/sign-in", params={"next": to}, headers=HTML).text)
    assert next(attrs["value"] for tag, attrs in page.tags if attrs.get("name") == "next") == "/"
    done = client.post("/sign-in", data={"key": client.key(), "next": to}, headers=HTML)
    assert done.headers["location"] == "/"
    assert "b=c" not in str(done.headers)


def test_a_wrong_key_is_asked_for_again(client: Keyed) -> None:
    """401 with the reason at the field, and without what was typed; JSON for who asked for it."""
    for given, reason in (("", "no key was given"), ("shp_wrong", "not known"), ("<script>", "not known")):
        answer = client.post("/sign-in", data={"key": given, "next": "/plans"}, headers=HTML)
        page = safe(answer.text)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert answer.text.partition("<title>")[2].startswith("Error: ")
        assert reason in page.text
        assert page.by_id("key").get("value") is None
        assert page.by_id("key")["aria-describedby"] == "key-help key-error"
    assert client.post("/sign-in", data={"key": "x"}).json()["type"] == "urn:shardplan:problem:unauthorized"


@pytest.mark.parametrize(
    "said", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}, {"origin": "null"}]
)
def test_other_sites_post_nothing(client: Keyed, said: dict[str, str]) -> None:
    """Neither a key of theirs into this browser, nor anything with the key that is in it."""
    assert client.post("/sign-in", data={"key": client.key()}, headers=HTML | said).status_code == 403
    client.post("/sign-in", data={"key": client.key()}, headers=HTML)
    assert client.post("/sign-out", headers=HTML | said).status_code == 403
    for path, body in (("/save", {"data": BASE}), ("/plans", {"json": BODY}), ("/plans/x/replan", {}), ("/", {"data": BASE})):
        assert client.post(path, headers=HTML | said, **body).status_code == 403, path
    assert client.delete("/plans/x", headers=said | {"edit-token": "x"}).status_code == 403
    assert client.get("/", headers=HTML | said).status_code == 200


def test_a_form_that_was_sent_signed_out_leads_to_its_page(client: Keyed) -> None:
    """A post cannot be sent again by a redirect: the way back is the form."""
    assert client.post("/save", data=BASE, headers=HTML).headers["location"] == "/sign-in"


def test_a_key_that_may_not_plan_lands_at_what_it_may(client: Keyed) -> None:
    """A reader begins at the saved plans, and is told what the form needs."""
    done = client.post("/sign-in", data={"key": client.key("read")}, headers=HTML)
    assert done.headers["location"] == "/plans"
    refused = client.get("/", headers=HTML)
    assert refused.status_code == 403
    assert "takes the scope plan" in safe(refused.text).text


def test_without_keys_there_is_no_sign_in(settings: AppSettings) -> None:
    """No page, no word of it, and nothing asks for a key."""
    with keyed(settings, require_keys=False) as client:
        assert [client.get(path, headers=HTML).status_code for path in ("/sign-in", "/")] == [404, 200]
        assert "Sign out" not in client.get("/", headers=HTML | {"cookie": "shardplan_key=x"}).text
        assert "authorization" not in client.get("/openapi.json").text.lower()
        assert "cache-control" not in client.get("/", headers=HTML).headers
