"""Charts in Chromium: drawn by Vega where scripts run, images where none does, in both schemes and at both widths."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import OpenPage, screenshot

pytestmark = pytest.mark.browser
CHARTS = ("alternatives", "what-if-sequence", "what-if-micro-batch", "what-if-gpus", "states")


def figure(name: str) -> str:
    return f'figure[data-chart="/charts/{name}.json"]'


def drawn(page: Page) -> Iterator[str]:
    """Bring each chart near and wait until it is drawn."""
    for name in CHARTS:
        page.locator(figure(name)).scroll_into_view_if_needed()
        page.wait_for_selector(f"{figure(name)}.drawn svg.marks")
        yield name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_charts_are_drawn_where_scripts_run(open_page: OpenPage, scheme: str, width: int) -> None:
    """As SVG inside the page, no wider than it, with marks that have names, in the scheme's ink; the console stays empty."""
    page = open_page("/", width=width, scheme=scheme)
    inks = set()
    for name in drawn(page):
        place = page.locator(f"{figure(name)} svg.marks")
        box = place.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert page.locator(f"{figure(name)} [role=graphics-symbol][aria-label]").count() >= 3
        assert not page.locator(f"{figure(name)} picture").is_visible()
        assert page.locator(f"{figure(name)} figcaption").inner_text().endswith(".")
        inks.add(page.locator(f"{figure(name)} svg.marks text").first.evaluate("text => getComputedStyle(text).fill"))
    (soft,) = {ink for ink in inks if ink != ""} if len(inks) == 1 else {max(inks)}
    light = sum(int(part) for part in re.findall(r"\d+", soft)[:3]) > 3 * 128
    assert light == (scheme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    screenshot(page, f"charts-{scheme}-{width}")
    page.locator("#alternatives").scroll_into_view_if_needed()


@pytest.mark.parametrize("width", [360, 1440])
def test_charts_are_images_where_no_script_runs(open_page: OpenPage, width: int) -> None:
    """Of the server, at a width for the screen, with a text for those who do not see them."""
    page = open_page("/", width=width, script=False)
    for name in CHARTS:
        image = page.locator(f"{figure(name)} img")
        image.scroll_into_view_if_needed()
        page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
        assert image.get_attribute("alt")
        box = image.bounding_box()
        assert box
        assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    screenshot(page, f"charts-images-{width}")
