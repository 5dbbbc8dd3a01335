"""What people do with the pages, in Chromium, with scripts and without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, screenshot

pytestmark = pytest.mark.browser

EXAMPLE = "/?model=llama-3.1-8b&gpu=h100-sxm-80gb&gpus_per_node=8&seq_len=8192&global_batch=64"
TOO_BIG = "/?model=llama-3.1-70b&gpu=h100-sxm-80gb&gpus_per_node=8&seq_len=8192&strategy=zero1"
CONFIG = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": false,
"_name_or_path": "pasted"}"""
SCRIPT = pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_home_answers_the_example(open_page: OpenPage, width: int, scheme: str) -> None:
    """The verdict comes first on a phone, beside the form on a desk, and nothing is cut off."""
    page = open_page(width=width, scheme=scheme)
    screenshot(page, f"home-{width}-{scheme}")
    verdict = page.locator(".verdict.large")
    expect(verdict).to_be_visible()
    box = verdict.bounding_box()
    assert box
    assert box["y"] < 400
    expect(page.locator("#f-model")).to_be_visible(visible=width > 960)
    expect(page.locator(".fold-inputs")).to_be_visible(visible=width <= 960)
    assert overflow(page) <= 0


def test_the_ladder_shows_its_reasons_on_a_laptop(open_page: OpenPage) -> None:
    """No table of the answer has to be scrolled sideways to be read."""
    page = open_page(width=1280)
    widths = page.locator(".answer .scroll").evaluate_all("boxes => boxes.map(b => b.scrollWidth - b.clientWidth)")
    assert widths
    assert max(widths) <= 0


def test_inputs_unfold_on_a_phone_without_a_script(open_page: OpenPage) -> None:
    """The fold is the browser's own."""
    page = open_page(width=360, script=False)
    expect(page.locator("#f-seq_len")).to_be_hidden()
    page.get_by_text("Change inputs").click()
    expect(page.locator("#f-seq_len")).to_be_visible()


@SCRIPT
def test_a_filled_in_form_gives_an_answer(open_page: OpenPage, script: bool) -> None:
    """State goes into the address; with a script only what was filled in."""
    page = open_page(script=script)
    page.fill("#f-model", "llama-7b")
    page.fill("#f-seq_len", "2k")
    page.press("#f-seq_len", "Enter")
    expect(page.locator(".heading")).to_contain_text("seq 2,048")
    assert "model=llama-7b" in page.url
    assert ("micro_batch=&" in page.url) is not script
    expect(page.locator("#f-seq_len")).to_have_value("2048")


@SCRIPT
def test_an_error_stands_beside_its_field(open_page: OpenPage, script: bool) -> None:
    """The summary leads to the field, which keeps what was typed."""
    page = open_page(script=script)
    page.fill("#f-seq_len", "lots")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page).to_have_title(re.compile("^Error: "))
    expect(page.locator("#f-seq_len")).to_have_value("lots")
    expect(page.locator("#e-seq_len")).to_contain_text("is not a number")
    page.get_by_role("alert").get_by_role("link").click()
    expect(page.locator("#f-seq_len")).to_be_in_viewport()
    screenshot(page, f"error-{'script' if script else 'plain'}")


@SCRIPT
def test_save_and_reopen(open_page: OpenPage, script: bool) -> None:
    """The token is shown once; the plan is in the list and can be taken up again."""
    name = f"saved with{'' if script else 'out'} a script"
    page = open_page(EXAMPLE, script=script)
    page.get_by_text("Save", exact=True).click()
    page.fill("#save-name", name)
    page.get_by_role("button", name="Save this plan").click()
    expect(page.locator("#token")).to_be_visible()
    screenshot(page, f"saved-{'script' if script else 'plain'}")
    page.locator(".saved a").click()
    expect(page.locator(".about b")).to_have_text(name)
    assert page.locator("#token").count() == 0
    page.get_by_role("link", name="Saved plans").click()
    page.fill("#q", "saved " + ("with" if script else "without"))
    page.press("#q", "Enter")
    page.get_by_role("link", name=name).first.click()
    page.get_by_role("link", name="Edit").click()
    expect(page.locator("#f-seq_len")).to_have_value("8192")


@SCRIPT
def test_a_file_is_downloaded(open_page: OpenPage, script: bool) -> None:
    """From the answer, before anything is saved."""
    page = open_page(EXAMPLE, script=script)
    page.locator(".file summary", has_text="launch.sh").click()
    with page.expect_download() as waiting:
        page.locator(".file[open] a", has_text="Download").click()
    assert waiting.value.suggested_filename == "launch.sh"
    assert Path(waiting.value.path()).read_text(encoding="utf-8").startswith("#!")


@SCRIPT
def test_a_config_is_pasted(open_page: OpenPage, script: bool) -> None:
    """Sent as a form body; files of the answer are downloaded the same way."""
    page = open_page(script=script)
    page.get_by_text("Paste or drop a config.json instead").click()
    page.fill("#f-config", CONFIG)
    page.get_by_role("button", name="Plan with this config.json").click()
    expect(page.locator(".heading")).to_contain_text("pasted · seq 8,192")
    page.locator(".file summary", has_text="launch.sh").click()
    with page.expect_download() as waiting:
        page.locator(".file[open] button", has_text="Download").click()
    assert waiting.value.suggested_filename == "launch.sh"


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
def test_what_does_not_fit_shows_ways_out(open_page: OpenPage, width: int, scheme: str) -> None:
    """How far off, and a way that fits, one click away."""
    page = open_page(TOO_BIG, width=width, scheme=scheme)
    screenshot(page, f"does-not-fit-{width}-{scheme}")
    expect(page.locator(".verdict.large")).to_have_text("Does not fit")
    assert overflow(page) <= 0
    page.locator(".ways li", has_text=re.compile(r"\bfits, ")).first.locator("a").click()
    expect(page.locator(".verdict.large")).not_to_have_text("Does not fit")


def test_a_card_opens_with_the_keyboard(open_page: OpenPage) -> None:
    """In place, with equation, numbers and source."""
    page = open_page()
    card = page.locator(".ledger .card").first
    card.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(card.locator("math")).to_be_visible()
    expect(card.locator(".figures")).to_contain_text("bytes")


def test_a_note_leads_to_its_field(open_page: OpenPage) -> None:
    """Also when the field is in a closed fold."""
    page = open_page(EXAMPLE)
    link = page.locator(".warnings a[href='#f-grad_dtype']")
    link.click()
    expect(page.locator("#f-grad_dtype")).to_be_focused()


@pytest.mark.parametrize("path", ["/plans", "/catalog", "/catalog/gpus", "/catalog/instances", "/catalog/models", "/docs", "/nothing"])
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1440, "dark")])
def test_other_pages_fit_the_window(open_page: OpenPage, path: str, width: int, scheme: str) -> None:
    """Wide tables scroll in their own box."""
    page = open_page(path, width=width, scheme=scheme)
    screenshot(page, f"{path.strip('/').replace('/', '-')}-{width}-{scheme}")
    assert overflow(page) <= 0


CONTRAST = """
() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = channels(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll('main *, header *, footer *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest('svg') || !e.checkVisibility()) continue;
    const found = ratio(channels(getComputedStyle(e).color), behind(e));
    if (found < 4.5) low.push(`${e.tagName}.${e.className} ${found.toFixed(2)} ${e.textContent.trim().slice(0, 40)}`);
  }
  for (const text of document.querySelectorAll('text.in:not(.soft)')) {
    const category = [...text.classList].find(name => name.startsWith('t-')).slice(2);
    const rect = document.querySelector(`rect.c-${category}:not(.soft)`);
    const found = ratio(channels(getComputedStyle(text).fill), channels(getComputedStyle(rect).fill));
    if (found < 4.5) low.push(`bar ${category} ${found.toFixed(2)}`);
  }
  return low;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", TOO_BIG, "/?model=x&seq_len=lots", "/plans", "/docs"])
def test_text_can_be_read(open_page: OpenPage, path: str, scheme: str) -> None:
    """Contrast of 4.5 to 1 for all text, in both themes, also inside the bars."""
    assert open_page(path, scheme=scheme).evaluate(CONTRAST) == []


def test_print_shows_the_answer_only(open_page: OpenPage) -> None:
    """No form, no navigation, no buttons."""
    page = open_page()
    page.emulate_media(media="print")
    expect(page.locator("#inputs")).to_be_hidden()
    expect(page.locator("nav").first).to_be_hidden()
    expect(page.locator(".verdict.large")).to_be_visible()
    screenshot(page, "print")


def test_files_are_highlighted(open_page: OpenPage) -> None:
    """Strings, numbers, words and comments have ranges, the text is as it was, and the colours keep their contrast."""
    page = open_page(EXAMPLE)
    sizes = page.evaluate("Object.fromEntries([...CSS.highlights].map(([name, ranges]) => [name, ranges.size]))")
    assert all(sizes[kind] > 5 for kind in ("comment", "string", "number", "word"))
    quoted = page.evaluate("[...CSS.highlights.get('string')].every(range => /^[\"']/.test(range.toString()))")
    assert quoted
