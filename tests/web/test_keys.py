"""Keys at the door: nothing without one, nothing beyond its scopes, and the same service as ever behind it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi import APIRouter
from sqlalchemy import select

from app.domain.errors import UnavailableError
from app.observability import JsonFormatter
from app.services.keys import SCOPES
from app.settings import AppSettings
from app.store.tables import IdempotencyRow
from app.web import keys as door
from app.web.keys import is_open, rule_for
from tests.contract.answers import departures
from tests.faults.service import BODY
from tests.web.keyed import HTML, Keyed, keyed, routes_of


@pytest.fixture
def client(settings: AppSettings) -> Iterator[Keyed]:
    with keyed(settings) as opened:
        yield opened


def test_nothing_is_answered_without_a_key(client: Keyed) -> None:
    """401 as a problem, before a body is read, with how to send a key; probes and static files excepted."""
    for method, path in routes_of(client.app.routes):
        if is_open(path):
            continue
        answer = client.request(method, path.replace("{kind}", "gpus"), content=b"{" * 5)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["www-authenticate"] == 'Bearer realm="shardplan"'
        if method != "HEAD":
            assert answer.json()["type"] == "urn:shardplan:problem:unauthorized"
            assert "Authorization: Bearer shp_…" in answer.json()["detail"]
    assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/static/app.css", "/sign-in")] == [200] * 4
    assert client.get("/nowhere").status_code == 401


@pytest.mark.parametrize("given", ["Bearer", "Bearer x", "Bearer shp_0123456789ab_" + "A" * 43, "Basic YTpi", "shp_x", "Bearer \xff"])
def test_a_wrong_key_is_said_to_be_wrong(client: Keyed, given: str) -> None:
    """401 that tells it from a key that is missing, and does not repeat it."""
    answer = client.get("/catalog/gpus", headers={"authorization": given.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="shardplan", error="invalid_token"'
    assert "A" * 43 not in answer.text


def test_a_key_opens_what_its_scopes_say(client: Keyed) -> None:
    """Each scope on its own, none includes another; 403 names the one that is needed."""
    asked: list[tuple[str, str, dict[str, Any], str]] = [
        ("POST", "/plan", {"json": BODY}, "plan"),
        ("POST", "/plan/launch.sh", {"json": BODY}, "plan"),
        ("GET", "/", {"headers": HTML}, "plan"),
        ("GET", "/catalog/gpus", {}, "plan"),
        ("GET", "/docs", {}, "plan"),
        ("GET", "/openapi.json", {}, "plan"),
        ("GET", "/plans", {}, "read"),
        ("POST", "/plans", {"json": BODY}, "write"),
        ("GET", "/metrics", {}, "admin"),
    ]
    bearing = {scope: client.bearing(scope) for scope in SCOPES}
    for method, path, given, needed in asked:
        for scope, header in bearing.items():
            answer = client.request(method, path, **given | {"headers": given.get("headers", {}) | header})
            if scope == needed:
                assert answer.status_code in (200, 201), (path, answer.text)
                continue
            assert answer.status_code == 403, (path, scope)
            assert f'error="insufficient_scope", scope="{needed}"' in answer.headers["www-authenticate"]
            assert f"takes the scope {needed}; the key" in answer.text


def test_saved_plans_behind_keys(client: Keyed) -> None:
    """Read with read, deleted with write and the plan's token."""
    read, write = client.bearing("read"), client.bearing("write")
    plan = client.post("/plans", json=BODY, headers=write).json()
    path = f"/plans/{plan['id']}"
    statuses = [client.get(path, headers=header).status_code for header in (read, write)]
    assert statuses == [200, 403]
    assert [client.post(f"{path}/replan", headers=header).status_code for header in (read, write)] == [200, 403]
    assert client.get(f"{path}/launch.sh", headers=read).status_code == 200
    token = {"edit-token": plan["edit_token"]}
    assert [client.delete(path, headers=header | token).status_code for header in (read, write)] == [403, 204]


def test_every_route_has_its_scope(client: Keyed) -> None:
    """The table in app/web/keys.py names each; a new route is listed there, or it takes admin."""
    found = set(routes_of(client.app.routes))
    assert {(method.upper(), path) for path, methods in client.app.openapi()["paths"].items() for method in methods} <= found
    assert len(found) > 20
    assert [(method, path) for method, path in sorted(found) if not is_open(path) and rule_for(method, path) not in SCOPES] == []
    assert {scope for _, _, scope in door.RULES} == set(SCOPES)


def test_sweeps_and_routes_nobody_listed(client: Keyed) -> None:
    """Sweeps are covered by method and prefix; a route without a rule takes admin, and what is no route is said to be none."""
    router = APIRouter()
    unlisted = [("GET", "/plans-of-all"), ("PUT", "/plans/{plan_id}")]
    for method, path in unlisted:
        router.add_api_route(path, lambda: {"ok": True}, methods=[method])
    client.app.include_router(router)
    sweeps = [
        ("POST", "/sweeps", "write"), ("GET", "/sweeps/a", "read"), ("GET", "/sweeps/a/results", "read"),
        ("POST", "/sweeps/a/cancel", "write"), ("DELETE", "/sweeps/a", "write"),
    ]  # fmt: skip
    for scope in SCOPES:
        header = client.bearing(scope)
        for method, path, needed in (*sweeps, *((method, path.replace("{plan_id}", "a"), "admin") for method, path in unlisted)):
            status = client.request(method, path, headers=header).status_code
            assert (status != 403) is (scope == needed), (method, path, scope, status)
        assert client.get("/nowhere", headers=header).status_code == 404
        assert client.get("/static-not", headers=header).status_code == 404


def test_a_revoked_and_an_expired_key(client: Keyed) -> None:
    """401 that says which, also to a client that has used it before."""
    made = client.keys.create("gone", ["plan"])
    header = {"authorization": f"Bearer {made.text}"}
    assert client.get("/catalog/gpus", headers=header).status_code == 200
    client.keys.revoke(made.key.id)
    check = client.app.state.key_check
    check._clock = lambda: time.monotonic() + 61
    answer = client.get("/catalog/gpus", headers=header)
    assert (answer.status_code, "was revoked at" in answer.json()["detail"]) == (401, True)
    brief = client.keys.create("brief", ["plan"], life=timedelta(microseconds=1))
    answer = client.get("/catalog/gpus", headers={"authorization": f"Bearer {brief.text}"})
    assert (answer.status_code, "expired at" in answer.json()["detail"]) == (401, True)


def test_while_the_database_is_away(client: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key seen lately plans on; one that cannot be checked gets 503 with Retry-After; no key is 401 as ever."""
    seen, other = client.bearing("plan"), client.bearing("plan")
    assert client.post("/plan", json=BODY, headers=seen).status_code == 200

    def away(**_: object) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr(client.app.state.database, "session", away)
    client.app.state.key_check._clock = lambda: time.monotonic() + 120
    assert client.post("/plan", json=BODY, headers=seen).status_code == 200
    put_off = client.post("/plan", json=BODY, headers=other)
    assert (put_off.status_code, put_off.headers["retry-after"]) == (503, "5")
    assert departures(client.app.openapi(), "/plan", put_off) == []
    assert client.get("/", headers=HTML | other).status_code == 503
    assert client.post("/plan", json=BODY).status_code == 401


def test_while_the_database_hangs(client: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it longer than a client should, and after the first nobody waits."""
    seen = client.bearing("plan")
    assert client.get("/catalog/gpus", headers=seen).status_code == 200
    monkeypatch.setattr(door, "_ASK_S", 0.2)
    monkeypatch.setattr(client.app.state.key_check, "ask", lambda _: time.sleep(1.5))
    ahead = [120.0]
    client.app.state.key_check._clock = lambda: time.monotonic() + ahead[0]
    started = time.monotonic()
    assert client.get("/catalog/gpus", headers=seen).status_code == 200
    assert time.monotonic() - started < 1.2
    monkeypatch.undo()
    monkeypatch.setattr(client.app.state.database, "session", lambda **_: pytest.fail("it was asked"))
    assert client.get("/catalog/gpus", headers=seen).status_code == 200


def test_idempotency_keys_are_of_one_client(client: Keyed) -> None:
    """Two clients that think of the same one do not meet; a rotated key is the same client; what is kept names neither."""
    first, second = client.keys.create("one", ["write"]), client.keys.create("two", ["write"])
    rotated = client.keys.rotate(first.key.id, grace=timedelta(hours=1))

    def save(text: str, name: str = "") -> Any:
        headers = {"authorization": f"Bearer {text}", "idempotency-key": "run-1"}
        return client.post("/plans", json=BODY | {"name": name}, headers=headers)

    kept = [save(made.text) for made in (first, second, rotated)]
    assert [answer.status_code for answer in kept] == [201, 201, 200]
    assert kept[0].json()["id"] == kept[2].json()["id"] != kept[1].json()["id"]
    assert save(second.text, "other").status_code == 409
    bad = {"authorization": f"Bearer {first.text}", "idempotency-key": "tab\t."}
    assert client.post("/plans", json=BODY, headers=bad).status_code == 422
    with client.app.state.database.session() as session:
        stored = session.execute(select(IdempotencyRow.key)).scalars().all()
    assert sorted(key.partition(":")[0] for key in stored) == sorted([first.key.id, second.key.id])
    assert not any("run-1" in key for key in stored)


def test_rates_are_of_one_client(settings: AppSettings) -> None:
    """By key, wherever it is used from; without a key by address, so that others behind it go on."""
    with keyed(settings, rate_limit="2/hour") as client:
        one, two = client.bearing("plan"), client.bearing("plan")
        assert [client.get("/catalog/gpus", headers=one).status_code for _ in range(3)] == [200, 200, 429]
        assert "this key may send 2 per 1 hour" in client.get("/catalog/gpus", headers=one).json()["detail"]
        assert [client.get("/catalog/gpus").status_code for _ in range(3)] == [401, 401, 429]
        assert [client.get("/catalog/gpus", headers=two).status_code for _ in range(3)] == [200, 200, 429]


def test_logs_have_the_id_and_nothing_has_the_secret(client: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    """Of a request that was let in, refused, or that broke, with a header, a cookie, a form or an address that holds a key."""
    text = client.key("plan")
    secret, key_id = text.split("_", 2)[2], text.split("_")[1]
    with caplog.at_level(logging.DEBUG):
        answers = [
            client.get("/catalog/gpus", headers={"authorization": f"Bearer {text}"}),
            client.get("/plans", headers={"authorization": f"Bearer {text}"}),
            client.get("/catalog/gpus", headers={"authorization": f"Bearer {text}x"}),
            client.get("/catalog/gpus", headers={"authorization": text}),
            client.post("/sign-in", data={"key": f"{text}x"}, headers=HTML),
            client.post("/sign-in", data={"key": text[:-1] + "\x00"}),
            client.get("/", headers=HTML | {"cookie": f"shardplan_key={text}x"}),
        ]
        client.app.state.database.session = lambda **_: 1 / 0
        broken = client.get("/catalog/gpus", headers=client_header(text[:-43] + "B" * 43))
        client.app.state.key_check._seen.clear()
        answers += [broken, client.get("/catalog/gpus", headers=client_header(text))]
    assert [answer.status_code for answer in answers] == [200, 403, 401, 401, 401, 401, 303, 401, 500]
    logged = [JsonFormatter().format(record) for record in caplog.records]
    assert sum(f'"key": "{key_id}"' in line for line in logged) == 2
    assert not any(secret[:30] in line for line in logged)
    assert not any(secret[:30] in answer.text + str(answer.headers) for answer in answers)


def client_header(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_nothing_behind_a_key_is_cached(client: Keyed) -> None:
    """Pages and documents are gone from the browser with the sign-out."""
    for path in ("/catalog/gpus", "/", "/plans"):
        assert client.get(path, headers=client.bearing()).headers["cache-control"] == "no-store"
        assert client.get(path).headers["cache-control"] == "no-store"
