"""Charts in Chromium: drawn by Vega where scripts run, images where none does, in both schemes and at both widths."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, screenshot
from tests.browser.test_flows import CONFIG

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
        box = page.locator(f"{figure(name)} svg.marks").bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert page.locator(f"{figure(name)} [role=graphics-symbol][aria-label]").count() >= 3
        assert not page.locator(f"{figure(name)} picture").is_visible()
        assert page.locator(f"{figure(name)} figcaption > p").inner_text().endswith(".")
        inks.add(page.locator(f"{figure(name)} .role-axis-label text").first.evaluate("text => getComputedStyle(text).fill"))
    soft = page.locator("h2 .note").first.evaluate("note => getComputedStyle(note).color")
    assert inks == {soft}
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    screenshot(page, f"charts-{scheme}-{width}")


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


def test_an_image_follows_the_scheme(open_page: OpenPage) -> None:
    """One address, two sets of colours: what a dark page shows is not what a light one does."""
    shots = []
    for scheme in ("light", "dark"):
        image = open_page("/", scheme=scheme, script=False).locator(f"{figure('states')} img")
        image.scroll_into_view_if_needed()
        image.page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
        shots.append(image.screenshot())
    assert shots[0] != shots[1]


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_the_table_opens_by_keyboard(open_page: OpenPage, script: bool) -> None:
    """A fold with the numbers where scripts run, and a page of the chart with them where none does."""
    page = open_page("/", script=script)
    fold = page.locator(f"{figure('states')} details")
    fold.scroll_into_view_if_needed()
    if script:
        page.wait_for_selector(f"{figure('states')}.drawn")
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    if script:
        expect(fold.locator("tbody tr")).to_have_count(11)
        expect(fold.get_by_role("columnheader", name="ZeRO-3 bytes")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Model states of one GPU by number of ranks")
    expect(page.locator("tbody tr")).to_have_count(11)
    for word in ("SVG", "PNG", "CSV"):
        expect(page.get_by_role("link", name=word, exact=True)).to_be_visible()


def test_selecting_an_alternative_pins_it(open_page: OpenPage) -> None:
    """A click on its point leads where its link in the table leads."""
    page = open_page("/")
    page.locator(figure("alternatives")).scroll_into_view_if_needed()
    page.wait_for_selector(f"{figure('alternatives')}.drawn")
    wanted = page.locator("section[aria-labelledby=alternatives] .scroll tbody tr").nth(2).get_by_role("link").get_attribute("href")
    page.locator(f"{figure('alternatives')} [aria-label^='3, alternative']").click(force=True)  # its number lies on it
    page.wait_for_url("**/?*")
    assert wanted
    assert parse_qs(urlsplit(page.url).query) == parse_qs(urlsplit(wanted).query)


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_moments_are_switched(open_page: OpenPage, script: bool) -> None:
    """The peak is open; the arrow keys go on to the next one, whose parts are told."""
    page = open_page("/", script=script)
    peak = page.locator(".moment", has_text="peak")
    expect(peak.locator(".note")).to_be_visible()
    peak.locator("input").focus()
    page.keyboard.press("ArrowDown")
    after = page.locator(".moment:has(:checked)")
    expect(after).not_to_contain_text("peak")
    expect(after.locator(".note")).to_contain_text("parameters")
    expect(peak.locator(".note")).to_be_hidden()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_what_if_leads_to_the_plan(open_page: OpenPage, script: bool) -> None:
    """A longer sequence with the other settings as they are is the plan of the curve; Enter sends it."""
    page = open_page("/", script=script)
    field = page.get_by_label("Sequence length", exact=True).and_(page.locator("[form=what-if-form]"))
    field.fill("16k")
    field.press("Enter")
    expect(page.locator(".heading")).to_contain_text("seq 16,384")
    expect(page.locator(".verdict.large")).to_have_text("Does not fit")
    expect(page.locator("#f-strategy")).to_have_value("zero2")


def test_a_pasted_config_is_drawn_too(open_page: OpenPage) -> None:
    """Its charts are fetched by a post."""
    page = open_page("/")
    page.get_by_text("Paste or drop a config.json instead").click()
    page.fill("#f-config", CONFIG)
    page.get_by_role("button", name="Plan with this config.json").click()
    assert list(drawn(page)) == list(CHARTS)


def test_charts_of_a_saved_plan_are_drawn(open_page: OpenPage) -> None:
    """At the plan's own addresses."""
    page = open_page("/")
    page.get_by_text("Save", exact=True).click()
    page.get_by_role("button", name="Save this plan").click()
    page.get_by_role("link", name="/plans/").first.click()
    chart = page.locator("figure[data-chart$='/charts/what-if-gpus.json']")
    chart.scroll_into_view_if_needed()
    page.wait_for_selector("figure[data-chart^='/plans/'][data-chart$='what-if-gpus.json'].drawn")
    expect(chart.locator("figcaption > p")).to_contain_text("the plan fits")
