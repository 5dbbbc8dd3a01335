"""How soon a plain plan is seen: from pressing Plan to the painted answer, in Chromium (``make bench ARGS=page``).

Starts the service itself, on a free port. Times are the browser's own: from the submit of the form to the paint of the
largest piece of the answer that the window shows; and of that, what the server and the network take. The verdict of the
preview is timed from the last key to its line, the pause before it asks left out. Needs Chromium and the extra ``browser``.
"""

from __future__ import annotations

import shutil
import statistics
from typing import Any

from bench.http import service

TURNS, WARM, TARGET_MS = 30, 5, 300
LENGTHS = ("2048", "4096", "8192", "16384")
_PAUSE_MS = 300
_PAINTED = """() => new Promise(done => new PerformanceObserver((list, observer) => {
  observer.disconnect();
  const [visit] = performance.getEntriesByType('navigation');
  done([performance.timeOrigin + list.getEntries().at(-1).startTime, visit.responseEnd - visit.requestStart]);
}).observe({type: 'largest-contentful-paint', buffered: true}))"""
_ASKED = """() => { inputs.addEventListener('input', () => { window.typed = performance.now(); });
  new MutationObserver(() => { window.told = performance.now(); }).observe(live, {childList: true}); }"""


def main() -> None:
    """Print the times of a submit and of a preview, as a median and where nineteen of twenty lie."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("page: needs Playwright; make it with `make .venv/.browser`")
        return
    chromium = shutil.which("chromium") or "/usr/bin/chromium"
    with service() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        submits = [_submit(page, LENGTHS[turn % len(LENGTHS)]) for turn in range(TURNS + WARM)][WARM:]
        page.evaluate(_ASKED)
        previews = [_preview(page, LENGTHS[turn % len(LENGTHS)]) for turn in range(TURNS + WARM)][WARM:]
        browser.close()
    print(f"{'in Chromium':34s}{'times':>7s}{'p50 ms':>9s}{'p95 ms':>9s}")
    painted = [paint for paint, _ in submits]
    _print("submit to painted answer", painted)
    _print("of that, until the page is received", [received for _, received in submits])
    _print("last key to the preview's verdict", previews)
    print(f"target: {TARGET_MS} ms from submit to paint; {'met' if statistics.median(painted) <= TARGET_MS else 'missed'} in the median")


def _submit(page: Any, length: str) -> tuple[float, float]:
    """Milliseconds from the submit to the paint of the answer, and from the request to the end of the response."""
    page.fill("#f-seq_len", length)
    started = page.evaluate("() => { const now = performance.timeOrigin + performance.now(); inputs.requestSubmit(); return now; }")
    page.wait_for_selector(f".heading:has-text('seq {int(length):,} ')")
    painted, received = page.evaluate(_PAINTED)
    return painted - started, received


def _preview(page: Any, length: str) -> float:
    """Milliseconds from the last key to the line, without the pause in which more keys are waited for."""
    page.evaluate("() => { window.told = 0; }")
    page.fill("#f-seq_len", length)
    page.wait_for_function("() => window.told > window.typed")
    return float(page.evaluate("() => window.told - window.typed")) - _PAUSE_MS


def _print(name: str, times: list[float]) -> None:
    p95 = statistics.quantiles(times, n=20)[-1]
    print(f"{name:34s}{len(times):7d}{statistics.median(times):9.0f}{p95:9.0f}")
