"""What a run really took, typed on the page of its plan, shown beside the prediction and taken away again, in Chromium."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from playwright.sync_api import expect

from app.services.plan import answer
from app.services.request import PlanRequest
from app.services.saved_plans import SavedPlans
from tests.browser.conftest import OpenPage, screenshot
from tests.browser.test_flows import CONTRAST, overflow
from tests.browser.test_saved import request
from tests.browser.test_sound import AXE, SMALL, violations

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "script", "scheme"), [(1440, True, "light"), (360, False, "dark")])
def test_a_run_is_kept_shown_and_removed(open_page: OpenPage, app: FastAPI, width: int, script: bool, scheme: str) -> None:
    """A wrong figure is said beside its field; with it mended the run stands beside the prediction, until its token removes it."""
    kept: SavedPlans = app.state.saved_plans
    saved = kept.save(request(), answer(PlanRequest.model_validate(request())).document(), name="measured")
    page = open_page(f"/plans/{saved.id}", width=width, script=script, scheme=scheme)
    page.get_by_label("Peak memory of the busiest GPU").fill("66.4")
    page.get_by_label("Seconds of an optimizer step").fill("9.5")
    page.get_by_role("button", name="Keep this run").click()
    expect(page.get_by_label("Peak memory of the busiest GPU")).to_have_accessible_description(re.compile("66.4 is read as 66 bytes"))
    page.get_by_label("Peak memory of the busiest GPU").fill("68,000 MiB")
    page.get_by_role("button", name="Keep this run").click()
    runs = page.get_by_role("region", name="Runs of this plan")
    expect(runs).to_contain_text("66.4 GiB")
    expect(runs).to_contain_text("9.5 s")
    screenshot(page, f"runs-{width}-{scheme}")
    assert overflow(page) <= 0
    assert page.evaluate(CONTRAST) == []
    if script:
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate(SMALL) == []
        assert violations(page) == []
    answered = open_page("/")
    expect(answered.get_by_text(re.compile(r"calibrated by \d+ runs? here"))).to_be_visible()
    page.get_by_label("Edit token, to remove a run").fill(saved.edit_token or "")
    page.get_by_role("button", name="Remove the run of").click()
    expect(page.get_by_text("No run of this plan was measured yet.")).to_be_visible()
