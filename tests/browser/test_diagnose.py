"""A log pasted into the page and answered there."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage

pytestmark = pytest.mark.browser
LOG = "CUDA out of memory. Tried to allocate 12.94 GiB (GPU 1; 79.35 GiB total capacity; 77.65 GiB already allocated; 316.12 MiB free)"


def test_a_log_is_pasted_and_answered(open_page: OpenPage) -> None:
    """From the navigation to the tensor and its remedies; a mistake is led to, and what was typed stays."""
    page = open_page("/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Diagnose").click()
    page.get_by_label("Log", exact=True).fill(LOG)
    page.get_by_label("Model", exact=False).first.fill("llama-3.1-8b")
    page.locator("#f-gpu").fill("a100-sxm-80gb")
    page.locator("#f-seq_len").fill("lots")
    page.get_by_role("button", name="Diagnose").click()
    page.get_by_role("alert").get_by_role("link").first.click()
    expect(page.locator("#f-seq_len")).to_be_focused()
    expect(page.get_by_label("Log", exact=True)).to_have_value(LOG)
    page.locator("#f-seq_len").fill("8k")
    page.locator("#f-gpus_per_node").fill("2")
    page.locator("#f-strategy").select_option("zero2")
    page.get_by_role("button", name="Diagnose").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("The GPU ran out of memory")
    expect(page.get_by_role("heading", name="What helps, the cheapest that is enough first")).to_be_visible()
