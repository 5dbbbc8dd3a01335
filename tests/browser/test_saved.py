"""Saved plans side by side, and planned again under another engine, in Chromium."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from fastapi import FastAPI
from playwright.sync_api import expect

from app.services.plan import answer
from app.services.request import PlanRequest
from app.services.saved_plans import SavedPlans
from tests.browser.conftest import OpenPage, screenshot
from tests.browser.test_flows import CONTRAST, SCRIPT, overflow

pytestmark = pytest.mark.browser
VIEWS = pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
HOSTILE = '</script><img src=x onerror=alert(1)> "; rm -rf ~ #'


def request(seq_len: int = 8192, nodes: int = 1) -> dict[str, Any]:
    return {
        "model": {"preset": "llama-3.1-8b"},
        "training": {"seq_len": seq_len, "global_batch": 64},
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": nodes}]},
    }


def keep(kept: SavedPlans, body: dict[str, Any], name: str, note: str = "") -> str:
    """Save the answer to a request; its id."""
    return kept.save(body, answer(PlanRequest.model_validate(body)).document(), name=name, note=note).id


@pytest.fixture(scope="module")
def saved(app: FastAPI, origin: str) -> list[str]:
    """Ids of three plans of their own names; the last has a name that would like to be markup."""
    kept: SavedPlans = app.state.saved_plans
    asked = [("short", request()), ("long", request(16384)), (HOSTILE, request(nodes=2))]
    return [keep(kept, body, name) for name, body in asked]


@pytest.fixture(scope="module")
def aged(app: FastAPI, origin: str) -> str:
    """A plan as an engine before this one would have answered it."""
    kept: SavedPlans = app.state.saved_plans
    body = request()
    then = copy.deepcopy(answer(PlanRequest.model_validate(body)).document())
    then["engine_version"] = "0.0.9"
    gpu = then["recommended"]["memory"]["gpu"]
    gpu["peak_allocated_bytes"] -= 2**30
    gpu["terms"][0]["bytes"] -= 2**30
    then["files"]["launch.sh"] += "echo more\n"
    return kept.save(body, then, name="aged").id


@SCRIPT
def test_plans_are_ticked_and_compared(open_page: OpenPage, saved: list[str], script: bool) -> None:
    """From the list to the differences with two ticks; what is the same is folded away."""
    page = open_page("/plans", script=script)
    page.get_by_label("Compare short", exact=True).check()
    page.get_by_label("Compare long", exact=True).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 plans side by side")
    differences = page.get_by_role("table").nth(1)
    expect(differences).to_contain_text("16,384")
    same = page.locator("details", has_text="What is the same")
    expect(same.locator("table").first).to_be_hidden()
    same.locator("summary").click()
    expect(same.locator("table").first).to_be_visible()


def test_one_tick_is_too_few(open_page: OpenPage, saved: list[str]) -> None:
    """The page says how many are compared."""
    page = open_page("/plans", script=False)
    page.get_by_label("Compare short", exact=True).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("main")).to_contain_text("2 to 4 can be compared")


@VIEWS
def test_the_comparison_fits_the_window_and_can_be_read(open_page: OpenPage, saved: list[str], width: int, scheme: str) -> None:
    """A name that would like to be markup is text; wide tables scroll in their own box."""
    page = open_page(f"/plans/compare?ids={','.join(saved)}", width=width, scheme=scheme)
    screenshot(page, f"compare-{width}-{scheme}")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    assert page.locator("img").count() == 0
    assert overflow(page) <= 0
    assert page.evaluate(CONTRAST) == []


@SCRIPT
def test_a_plan_is_planned_again(open_page: OpenPage, aged: str, script: bool) -> None:
    """One button on the saved plan; the page says what moved, why, and how the files differ."""
    page = open_page(f"/plans/{aged}", script=script)
    page.get_by_role("button", name="Plan again with today's engine").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("from engine 0.0.9 to")
    moved = page.get_by_role("region", name="Figures that moved")
    expect(moved).to_contain_text("peak allocated")
    page.locator(".file summary", has_text="launch.sh").click()
    expect(page.locator(".file[open] pre")).to_contain_text("-echo more")


@VIEWS
def test_what_moved_fits_the_window_and_can_be_read(open_page: OpenPage, aged: str, width: int, scheme: str) -> None:
    """On a phone as on a desk, in both themes."""
    page = open_page(f"/plans/{aged}", width=width, scheme=scheme)
    page.get_by_role("button", name="Plan again with today's engine").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("moved")
    screenshot(page, f"replan-{width}-{scheme}")
    assert overflow(page) <= 0
    assert page.evaluate(CONTRAST) == []
