"""The form while it is being filled in: the verdict follows, errors and notes stand beside their fields."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import OpenPage, screenshot
from tests.browser.test_flows import CONFIG, EXAMPLE, SCRIPT

pytestmark = pytest.mark.browser


def previews(page: Page) -> list[str]:
    """Bodies of the questions that a page asks from now on."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data or "") if request.url.endswith("/preview") else None)
    return asked


def test_the_verdict_follows_what_is_typed(open_page: OpenPage) -> None:
    """Word, icon and figures, without leaving the page; one question for a burst of typing."""
    page = open_page(EXAMPLE)
    asked = previews(page)
    expect(page.locator("#live")).to_be_empty()
    page.locator("#f-seq_len").fill("")
    page.locator("#f-seq_len").press_sequentially("16k", delay=20)
    expect(page.locator("#live .verdict")).to_have_text("Fits")
    expect(page.locator("#live")).to_have_text(re.compile(r"of \d+\.\d GiB, [\d,]+ tokens/s per GPU"))
    expect(page.locator("#live svg")).to_be_visible()
    assert len(asked) == 1
    assert "seq_len=16k" in asked[0]
    assert "seq_len=8192" in page.url
    page.fill("#f-model", "llama-3.1-70b")
    page.locator("summary", has_text="Parallelism").click()
    page.select_option("#f-strategy", "zero1")
    expect(page.locator("#live .verdict")).to_have_text("Does not fit")
    expect(page.locator("#live")).to_contain_text("GiB too much")
    screenshot(page, "preview")


def test_a_newer_question_cancels_the_one_that_runs(open_page: OpenPage) -> None:
    """The answer to the older one never shows, although it would come last."""
    page = open_page(EXAMPLE)
    page.evaluate("""() => {
      const real = fetch;
      let asked = 0;
      window.fetch = (url, options) => asked++ ? real(url, options) : new Promise((done, lost) => {
        options.signal.addEventListener('abort', () => lost(options.signal.reason));
        setTimeout(() => done(new Response('{"line": "too late", "errors": {}, "notes": {}}')), 2000);
      });
    }""")
    page.fill("#f-seq_len", "1k")
    time.sleep(0.6)
    page.fill("#f-seq_len", "2k")
    expect(page.locator("#live .verdict")).to_have_text("Fits")
    time.sleep(2)
    expect(page.locator("#live")).not_to_contain_text("too late")


def test_errors_and_notes_come_and_go_with_what_is_typed(open_page: OpenPage) -> None:
    """Beside the field and tied to it; what was typed stays; parameter offload below stage 3 is corrected at once."""
    page = open_page(EXAMPLE)
    page.fill("#f-seq_len", "lots")
    expect(page.locator("#e-seq_len")).to_contain_text("'lots' is not a number; write one such as 8192 or 8k")
    field = page.locator("#f-seq_len")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_attribute("aria-describedby", "e-seq_len h-seq_len")
    expect(field).to_have_value("lots")
    page.locator("#live a").click()
    expect(field).to_be_focused()
    page.fill("#f-seq_len", "8k")
    expect(page.locator("#e-seq_len")).to_have_count(0)
    expect(field).to_have_attribute("aria-invalid", "false")
    page.locator("summary", has_text="Parallelism").click()
    page.select_option("#f-strategy", "zero2")
    page.select_option("#f-offload_parameters", "cpu")
    expect(page.locator("#n-offload_parameters")).to_contain_text("DeepSpeed reads offload_param only at stage 3")
    expect(page.locator("#f-offload_parameters")).to_have_attribute("aria-describedby", re.compile("^n-offload_parameters "))
    screenshot(page, "preview-note")
    page.select_option("#f-strategy", "zero3")
    expect(page.locator("#n-offload_parameters")).to_have_count(0)


def test_a_lost_connection_is_said_and_tried_again(open_page: OpenPage) -> None:
    """Nothing typed is lost, and the verdict comes once the network is back."""
    page = open_page(EXAMPLE)
    page.context.set_offline(True)
    page.fill("#f-seq_len", "4k")
    expect(page.locator("#live")).to_contain_text("The server cannot be reached; what is typed here stays. Trying again in 1 s.")
    expect(page.locator("#live")).to_contain_text("Trying again in 2 s.", timeout=4000)
    page.context.set_offline(False)
    expect(page.locator("#live .verdict")).to_have_text("Fits")
    expect(page.locator("#f-seq_len")).to_have_value("4k")


def test_a_busy_server_is_asked_when_it_says(open_page: OpenPage) -> None:
    """After Retry-After of a 429."""
    page = open_page(EXAMPLE)
    busy = iter([True])

    def refuse_once(route: Route) -> None:
        if next(busy, False):
            route.fulfill(status=429, headers={"retry-after": "1"}, body="{}")
        else:
            route.continue_()

    page.route("**/preview", refuse_once)
    page.fill("#f-seq_len", "4k")
    expect(page.locator("#live")).to_have_text("The server is busy. Trying again in 1 s.")
    expect(page.locator("#live .verdict")).to_have_text("Fits")


@SCRIPT
def test_a_config_file_is_chosen(open_page: OpenPage, script: bool) -> None:
    """With a script it is read into its field and sent by any button; without one by its own, and it is kept through edits."""
    page = open_page(EXAMPLE, script=script)
    page.get_by_text("Paste or drop a config.json instead").click()
    page.set_input_files("#f-config_file", {"name": "config.json", "mimeType": "application/json", "buffer": CONFIG.encode()})
    if script:
        expect(page.locator("#f-config")).to_have_value(CONFIG)
        expect(page.locator("#live .verdict")).to_have_text("Fits")
        page.get_by_role("button", name="Plan", exact=True).click()
    else:
        page.get_by_role("button", name="Plan with this config.json").click()
    expect(page.locator(".heading")).to_contain_text("pasted · seq 8,192")
    page.fill("#f-seq_len", "4k")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator(".heading")).to_contain_text("pasted · seq 4,096")


def test_a_config_file_is_dropped(open_page: OpenPage) -> None:
    """Anywhere on the form."""
    page = open_page(EXAMPLE)
    transfer = page.evaluate_handle(
        "text => { const t = new DataTransfer(); t.items.add(new File([text], 'config.json')); return t; }", CONFIG
    )
    page.dispatch_event("#inputs", "drop", {"dataTransfer": transfer})
    expect(page.locator("#f-config")).to_have_value(CONFIG)
    expect(page.locator("#live .verdict")).to_have_text("Fits")


@SCRIPT
def test_pools_are_added_and_taken_away(open_page: OpenPage, script: bool) -> None:
    """One row a press, where the cursor then is; those after a pool that is taken away move up."""
    page = open_page(EXAMPLE, script=script)
    for number, gpu in ((2, "a100-sxm-80gb"), (3, "l40s")):
        page.get_by_role("button", name="Add a pool of other GPUs").click()
        expect(page.locator(f"#f-gpu{number}")).to_be_focused()
        page.fill(f"#f-gpu{number}", gpu)
    screenshot(page, f"pools-{'script' if script else 'plain'}")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#f-gpu3")).to_have_value("l40s")
    page.get_by_role("button", name="Take pool 2 away").click()
    expect(page.locator("#f-gpu2")).to_have_value("l40s")
    expect(page.locator("#f-gpu3")).to_have_count(0)


@SCRIPT
def test_focus_is_on_what_is_new(open_page: OpenPage, script: bool) -> None:
    """The verdict after an answer, the summary after errors; a first visit is left alone."""
    page = open_page(script=script)
    expect(page.locator(".lead-answer h1")).not_to_be_focused()
    page.fill("#f-seq_len", "2k")
    page.press("#f-seq_len", "Enter")
    expect(page.locator(".lead-answer h1")).to_be_focused()
    page.fill("#f-seq_len", "x")
    page.press("#f-seq_len", "Enter")
    expect(page.locator("#problem-title")).to_be_focused()


def test_a_clip_gives_its_tokens(open_page: OpenPage) -> None:
    """Frames, height and width replace the sequence, with the tokens said as they are typed."""
    page = open_page("/?model=wan2.1-t2v-1.3b&gpu=h100-sxm-80gb&gpus_per_node=8&seq_len=8192")
    page.locator("summary", has_text="Tokens of a video or image instead").click()
    for name, value in (("frames", "81"), ("height", "720"), ("width", "1,280")):
        page.fill(f"#f-{name}", value)
    expect(page.locator("#n-frames")).to_have_text("This clip has 75,600 tokens.")
    page.press("#f-width", "Enter")
    expect(page.locator(".heading")).to_contain_text("seq 75,600")
    expect(page.locator("#n-frames")).to_have_text("This clip has 75,600 tokens.")


def test_the_whole_form_works_with_the_keyboard(open_page: OpenPage) -> None:
    """The first stop skips to the content; fields follow in the order they are read; Enter plans."""
    page = open_page()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    tops = "[...document.querySelectorAll('#inputs :is(input, select, textarea)')].filter(e => e.checkVisibility()).map(e => e.offsetTop)"
    order = page.evaluate(tops)
    assert len(order) > 8
    assert order == sorted(order)
    seen = []
    for _ in range(24):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    wanted = ["Plan", "f-model", "f-gpu", "f-gpus_per_node", "f-nodes", "f-seq_len"]
    assert [name for name in seen if name in wanted][-len(wanted) :] == wanted
    page.focus("#f-seq_len")
    page.keyboard.press("Control+a")
    page.keyboard.type("4k")
    page.keyboard.press("Enter")
    expect(page.locator(".heading")).to_contain_text("seq 4,096")
