"""A private service in Chromium: signing in, being told why not, and signing out; without a script too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.services.keys import SCOPES, Keys
from app.settings import AppSettings
from app.store.session import Database
from tests.browser.conftest import OpenPage, screenshot
from tests.browser.test_sound import AXE, violations
from tests.served import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a service that requires keys, and one of its keys."""
    url = f"sqlite:///{tmp_path_factory.mktemp('private') / 'private.db'}"
    with served(AppSettings(database_url=url, require_keys=True, log_format="text", log_level="WARNING")) as address:
        database = Database(url)
        key = Keys(database).create("browser", SCOPES).text
        database.close()
        yield address, key


@pytest.mark.parametrize(("width", "script"), [(360, True), (1440, False)])
def test_a_key_lets_in_and_is_given_back(open_page: OpenPage, private: tuple[str, str], width: int, script: bool) -> None:
    """Whoever asks for a page is sent to sign in, told what is wrong with a wrong key, and let in to that page with a right one."""
    address, key = private
    page = open_page("/healthz", width=width, script=script)
    page.goto(f"{address}/plans?q=llama")
    assert page.title().startswith("Sign in")
    page.fill("#key", "shp_wrong")
    page.click("form.sign-in button")
    assert page.locator("#key-error").is_visible()
    if script:
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert violations(page) == []
        screenshot(page, f"sign-in-{width}")
    page.fill("#key", key)
    page.click("form.sign-in button")
    assert page.url == f"{address}/plans?q=llama"
    page.click("form.sign-out button")
    assert page.title().startswith("Sign in")
    page.goto(f"{address}/plans")
    assert page.title().startswith("Sign in")


def test_the_key_is_out_of_reach_of_scripts(open_page: OpenPage, private: tuple[str, str]) -> None:
    """It lies in a cookie that only this site's own requests carry."""
    address, key = private
    page = open_page("/healthz")
    page.goto(f"{address}/sign-in")
    page.fill("#key", key)
    page.click("form.sign-in button")
    assert key not in page.evaluate("document.cookie")
    (cookie,) = [cookie for cookie in page.context.cookies(address) if cookie["name"].endswith("shardplan_key")]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
