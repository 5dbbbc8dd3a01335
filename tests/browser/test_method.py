"""The method pages in Chromium: they fit, can be read, and step by the keyboard without a script."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage, screenshot
from tests.browser.test_flows import CONTRAST, overflow

pytestmark = pytest.mark.browser
VIEWS = pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (360, "light"), (1440, "dark"), (1440, "light")])
PAGES = (
    "/method",
    "/method/memory",
    "/method/traffic",
    "/method/time",
    "/method/offload",
    "/method/checkpoints",
    "/method/strategies",
    "/method/strategies/zero3",
    "/method/deepspeed-fsdp",
    "/method/wrong-claims",
    "/method/accuracy?source=qwen",
    "/method/glossary",
    "/method/sources",
    "/catalog",
    "/catalog/gpus",
    "/catalog/models?q=llama&sort=parameters",
)
HEADINGS = """() => [...document.querySelectorAll('main h1, main h2, main h3, main h4')].filter(h => h.checkVisibility())
  .map(h => Number(h.tagName[1]))"""


@VIEWS
@pytest.mark.parametrize("path", PAGES)
def test_method_pages_fit_and_can_be_read(open_page: OpenPage, path: str, width: int, scheme: str) -> None:
    """Nothing is wider than the window, text has contrast, and headings come in order, on a phone and on a desk, in both themes."""
    page = open_page(path, width=width, scheme=scheme)
    screenshot(page, f"{path.strip('/').replace('/', '-').partition('?')[0]}-{width}-{scheme}")
    assert overflow(page) <= 0
    assert page.evaluate(CONTRAST) == []
    levels = page.evaluate(HEADINGS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_a_life_is_stepped_by_keyboard(open_page: OpenPage, script: bool) -> None:
    """The arrow keys show one moment after the other, and only that one."""
    page = open_page("/method/strategies/fsdp_full?at=initialisation", script=script)
    panels = page.locator(".panel:visible h3")
    expect(panels).to_have_count(1)
    expect(panels).to_contain_text("Engine initialisation")
    page.locator("#at-initialisation").focus()
    for words in ("End of forward", "Loss backward", "Backward of the last block"):
        page.keyboard.press("ArrowRight")
        expect(panels).to_have_count(1)
        expect(panels).to_contain_text(words)
    page.locator("fieldset").get_by_text("9 optimizer step").click()
    expect(panels).to_contain_text("Optimizer step")


def test_a_step_has_an_address(open_page: OpenPage) -> None:
    """The link to the next moment opens the page there."""
    page = open_page("/method/strategies/zero2?at=forward", script=False)
    page.get_by_role("link", name="loss backward →").click()
    expect(page).to_have_url(page.url.partition("?")[0] + "?at=loss#life")
    expect(page.locator("#at-loss")).to_be_checked()
    expect(page.locator(".panel:visible")).to_have_count(1)


def test_every_moment_is_printed(open_page: OpenPage) -> None:
    """Paper cannot be stepped through."""
    page = open_page("/method/strategies/zero3")
    page.emulate_media(media="print")
    expect(page.locator(".panel:visible")).to_have_count(9)
    expect(page.locator(".subnav")).to_be_hidden()
    screenshot(page, "method-print")
