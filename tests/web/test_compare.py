"""Replan and compare from outside: JSON and pages, names as text, routes that do not hide each other."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app import ENGINE_VERSION
from app.services.saved_plans import SavedPlans
from app.settings import AppSettings
from app.store.session import Database
from app.web.schemas import EXAMPLE_REQUEST
from tests.web.test_pages import HOSTILE, HTML, safe

ZERO3 = EXAMPLE_REQUEST | {"constraints": {"strategy": "zero3", "framework": "deepspeed"}}


def save(client: TestClient, request: dict[str, Any] = EXAMPLE_REQUEST, **words: str) -> dict[str, Any]:
    found: dict[str, Any] = client.post("/plans", json=request | words).json()
    return found


def older(client: TestClient, settings: AppSettings, name: str) -> str:
    """A plan as an older engine might have saved it."""
    answer = client.post("/plan", json=EXAMPLE_REQUEST).json() | {"engine_version": "0.1.0", "verdict": "tight", "warnings": []}
    answer["recommended"]["time"]["step_s"] *= 2
    answer["files"]["launch.sh"] += "echo gone\n"
    database = Database(settings.database_url)
    try:
        return SavedPlans(database).save(EXAMPLE_REQUEST, answer, name=name).id
    finally:
        database.close()


def test_replan_is_a_plan_with_its_changes(client: TestClient, settings: AppSettings) -> None:
    """The shape of ``POST /plan``, which engine gave which, and no new saved plan."""
    plan_id = older(client, settings, "old")
    response = client.post(f"/plans/{plan_id}/replan")
    document, planned = response.json(), client.post("/plan", json=EXAMPLE_REQUEST).json()
    assert response.status_code == 200
    assert set(document) == (set(planned) - {"calibration"}) | {"replan_of", "changes"}
    assert document["recommended"] == planned["recommended"]
    assert document["changes"]["engine_version"] == {"then": "0.1.0", "now": ENGINE_VERSION}
    moved = {(row["section"], row["key"]): row for row in document["changes"]["moved"]}
    assert (moved["verdict", "verdict"]["then"], moved["verdict", "verdict"]["now"]) == ("tight", "fits")
    assert moved["time", "step_s"]["change"] == pytest.approx(-planned["recommended"]["time"]["step_s"])
    assert [file["name"] for file in document["changes"]["files"]] == ["launch.sh"]
    assert "-echo gone" in document["changes"]["files"][0]["diff"]
    assert [item["id"] for item in client.get("/plans").json()["items"]] == [plan_id]


def test_a_plan_of_this_engine_does_not_move(client: TestClient) -> None:
    """What was saved a moment ago is what is answered now: nothing in a plan depends on when or by whom it is made."""
    saved = save(client, ZERO3, name="fresh")
    found = client.post(f"/plans/{saved['id']}/replan").json()["changes"]
    assert (found["moved"], found["files"]) == ([], [])
    page = safe(client.post(f"/plans/{saved['id']}/replan", headers=HTML).text)
    assert "Nothing moved under the same engine" in page.text


def test_unknown_plans(client: TestClient) -> None:
    """404 in both, 422 for what is no comparison."""
    assert client.post("/plans/nope/replan").status_code == 404
    assert client.get("/plans/compare", params={"ids": "a,b"}).status_code == 404
    assert client.get("/plans/compare", params={"ids": "a"}).status_code == 422
    assert client.get("/plans/compare").status_code == 422


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(client: TestClient, settings: AppSettings, name: str) -> None:
    """On both pages, in titles too."""
    plan_id = older(client, settings, name)
    other = save(client, ZERO3, name=name)["id"]
    replanned = client.post(f"/plans/{plan_id}/replan", headers=HTML)
    compared = client.get("/plans/compare", params={"ids": f"{plan_id},{other}"}, headers=HTML)
    for response in (replanned, compared):
        assert response.status_code == 200
        assert "Accept" in response.headers["vary"].split(", ")
        page = safe(response.text)
        assert name in page.text
    assert "What moved and why" in replanned.text
    assert '<h2 id="differences">Differences</h2>' in compared.text


def test_compare_takes_ids_in_one_or_several_parameters(client: TestClient) -> None:
    """As api.md writes it, and as a form of ticked boxes sends it; differences carry both values."""
    one, two = save(client)["id"], save(client, ZERO3, name="sharded")["id"]
    joined = client.get("/plans/compare", params={"ids": f"{one},{two}"}).json()
    assert client.get("/plans/compare", params=[("ids", one), ("ids", two)]).json() == joined
    assert [plan["id"] for plan in joined["plans"]] == [one, two]
    rows = {(row["section"], row["key"]): row["values"] for row in joined["differences"]}
    assert rows["settings", "strategy"] == ["zero2", "zero3"]
    assert not {(row["section"], row["key"]) for row in joined["same"]} & set(rows)


def test_the_pages_lead_to_each_other(client: TestClient) -> None:
    """The list offers to compare, a plan to be planned again."""
    saved = save(client, name="first")
    listed = safe(client.get("/plans", headers=HTML).text)
    assert ("input", {"type": "checkbox", "name": "ids", "value": saved["id"], "aria-label": "Compare first"}) in listed.tags
    assert ("form", {"method": "get", "action": "/plans/compare"}) in listed.tags
    shown = safe(client.get(f"/plans/{saved['id']}", headers=HTML).text)
    assert ("form", {"class": "about", "method": "post", "action": f"/plans/{saved['id']}/replan"}) in shown.tags


def test_values_that_round_alike_are_shown_exactly(client: TestClient, settings: AppSettings) -> None:
    """A difference is never shown as two equal figures."""
    answer = client.post("/plan", json=EXAMPLE_REQUEST).json()
    exact = answer["recommended"]["memory"]["gpu"]["device_bytes"]
    database = Database(settings.database_url)
    ids = []
    for more in (0, 1):
        answer["recommended"]["memory"]["gpu"]["device_bytes"] = exact + more
        ids.append(SavedPlans(database).save(EXAMPLE_REQUEST, answer).id)
    database.close()
    page = safe(client.get("/plans/compare", params={"ids": ",".join(ids)}, headers=HTML).text)
    assert f"{exact:,} bytes" in page.text
    assert f"{exact + 1:,} bytes" in page.text
