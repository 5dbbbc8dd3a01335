"""The report of a saved plan as a PDF, comparing an existing file, and deleting, in Chromium."""

from __future__ import annotations

import io
import json
import re

import pytest
from fastapi import FastAPI
from playwright.sync_api import expect
from pypdf import PdfReader

from app.services.saved_plans import SavedPlans
from tests.browser.conftest import SCREENSHOTS, OpenPage, screenshot
from tests.browser.test_flows import EXAMPLE, SCRIPT, overflow
from tests.browser.test_saved import keep, request

pytestmark = pytest.mark.browser
MINE = '{"train_batch_size": 64, "bf16": {"enabled": true}, "zero_optimization": {"reduce_bucket_size": 5e8, "legacy_stage1": true}}'


@pytest.fixture(scope="module")
def plan(app: FastAPI, origin: str) -> str:
    """Address of a saved plan."""
    kept: SavedPlans = app.state.saved_plans
    return "/plans/" + keep(kept, request(), "to print", note="for the meeting")


@pytest.mark.parametrize(("paper", "height"), [("A4", 842), ("Letter", 792)])
def test_the_report_is_a_good_pdf(open_page: OpenPage, plan: str, paper: str, height: int) -> None:
    """All of it is text, on few pages of the right size; files begin on pages of their own; no controls are printed."""
    page = open_page(plan + "/report")
    files = [heading.partition(": ")[2] for heading in page.locator(".appendix h2").all_inner_texts()]
    assert {"ds_config.json", "launch.sh"} <= set(files)
    page.emulate_media(media="print")
    printed = page.pdf(format=paper)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / f"report-{paper}.pdf").write_bytes(printed)
    reader = PdfReader(io.BytesIO(printed))
    texts = [re.sub(r"\s+", " ", sheet.extract_text()) for sheet in reader.pages]
    whole = " ".join(texts)
    assert round(float(reader.pages[0].mediabox.height)) == pytest.approx(height, abs=2)
    assert 5 <= len(texts) <= 24
    for words in (
        "to print",
        "for the meeting",
        "What binds",
        "Settings",
        "GPU memory at the peak",
        "Traffic of one GPU",
        "How sure",
        "https://",
    ):
        assert words in whole, words
    assert "Fits" in texts[0]
    assert f"1 / {len(texts)}" in texts[0]
    assert "Saved plans" not in whole
    for number, name in enumerate(files, 1):
        starts = [text for text in texts if f"Appendix {number}: {name}" in text]
        assert len(starts) == 1
        assert starts[0].index("Appendix") < 40
    assert 'exec deepspeed --num_gpus "$GPUS_PER_NODE"' in whole


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
def test_the_report_can_be_read_on_a_screen(open_page: OpenPage, plan: str, width: int, scheme: str) -> None:
    """Tables do not push the page wider than the window."""
    page = open_page(plan + "/report", width=width, scheme=scheme)
    screenshot(page, f"report-{width}-{scheme}")
    assert overflow(page) <= 0


@SCRIPT
def test_an_existing_file_is_compared(open_page: OpenPage, script: bool) -> None:
    """From the answer: by text, then by file; the rows say what a key changes."""
    page = open_page(EXAMPLE, script=script)
    page.locator(".file summary", has_text="Compare").click()
    page.fill("#existing", MINE)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_have_text("Your ds_config.json against the plan's")
    expect(page.locator("main")).to_contain_text("Keys only in yours: 1.")
    expect(page.locator("tr", has_text="legacy_stage1")).to_be_visible()
    expect(page.locator("tr", has_text="reduce_bucket_size").first).to_contain_text("Elements, not bytes")
    screenshot(page, f"diff-{'script' if script else 'plain'}")
    broken = {"name": "ds_config.json", "mimeType": "application/json", "buffer": b'{"a": }'}
    page.set_input_files("#existing-file", broken)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#problem-title")).to_contain_text("the file is not JSON")
    page.set_input_files("#existing-file", broken | {"buffer": json.dumps({"zero_optimization": {"stage": 1}}).encode()})
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_have_text("Your ds_config.json against the plan's")
    page.get_by_role("link", name="Back to the plan").click()
    expect(page.locator("#f-seq_len")).to_have_value("8192")


@SCRIPT
def test_a_plan_is_deleted_from_its_page(open_page: OpenPage, script: bool) -> None:
    """The page says what will be gone; a wrong token deletes nothing; the right one does."""
    page = open_page(EXAMPLE, script=script)
    page.get_by_text("Save", exact=True).click()
    page.fill("#save-name", "short-lived")
    page.get_by_role("button", name="Save this plan").click()
    token = page.locator("#token").inner_text()
    page.get_by_role("link", name="Delete").click()
    expect(page.locator(".settings")).to_contain_text("short-lived")
    page.fill("#token", "not the token")
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator("#e-token")).to_contain_text("edit_token is not the plan's")
    expect(page.locator("#token")).to_have_value("not the token")
    screenshot(page, f"delete-{'script' if script else 'plain'}")
    page.fill("#token", token)
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator("h1")).to_contain_text("is deleted")
    page.get_by_role("link", name="Back to the saved plans").click()
    expect(page.get_by_role("link", name="short-lived")).to_have_count(0)
