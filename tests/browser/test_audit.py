"""The audit in Chromium: a file is pasted, read against its model, and given back mended; with and without scripts."""

from __future__ import annotations

import pytest

from tests.browser.conftest import SCREENSHOTS, OpenPage

pytestmark = pytest.mark.browser
FILE = """{
  // from a blog
  "train_micro_batch_size_per_gpu": 1,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}, "reduce_bucket_size": "5e8"},
}
"""


@pytest.mark.parametrize(("width", "scheme", "script"), [(1440, "light", True), (360, "dark", True), (1440, "dark", False)])
def test_a_pasted_file_is_audited(open_page: OpenPage, width: int, scheme: str, script: bool) -> None:
    """Findings first, then the prediction, then the files; what was typed is kept."""
    page = open_page("/audit", width=width, scheme=scheme, script=script)
    page.fill("#f-existing", FILE)
    page.fill("#f-model", "llama-3.1-8b")
    page.fill("#f-gpu", "a100-sxm-80gb")
    page.fill("#f-seq_len", "4k")
    page.click("button:text-is('Audit')")
    page.wait_for_selector("#findings")
    assert page.locator(".finding.error").count() >= 1
    assert "offload_param" in page.locator("ul.findings").inner_text()
    assert page.locator("#predicted").count() == 1
    corrected = page.locator("#audit-file-1").inner_text()
    assert '"offload_param"' not in corrected
    assert page.input_value("#f-existing").strip() == FILE.strip()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"audit-{width}-{scheme}-{'script' if script else 'plain'}.png", full_page=True)


def test_what_is_no_configuration_is_refused_beside_its_field(open_page: OpenPage) -> None:
    """With the line where reading stopped, and the text kept."""
    page = open_page("/audit", script=False)
    page.fill("#f-existing", '{"zero_optimization": {\n "stage": }}')
    page.fill("#f-seq_len", "lots")
    page.click("button:text-is('Audit')")
    assert "line 2" in page.locator("#e-existing").inner_text()
    assert page.locator("#e-seq_len").count() == 1
    assert "stage" in page.input_value("#f-existing")
