"""A service on a free port with a database of its own, and Chromium pages that report every complaint."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, sync_playwright

from app.main import create_app
from app.settings import AppSettings

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENSHOTS = Path(__file__).resolve().parents[2] / ".cache" / "screenshots"
OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The service, before it is started."""
    database = tmp_path_factory.mktemp("browser") / "browser.db"
    return create_app(AppSettings(database_url=f"sqlite:///{database}", log_format="text", log_level="WARNING"))


@pytest.fixture(scope="session")
def origin(app: FastAPI) -> Iterator[str]:
    """Address of the running service."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.started
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The installed Chromium."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser, origin: str) -> Iterator[OpenPage]:
    """Opens a path of the service; at the end no page has logged an error or broken the content security policy."""
    complaints: list[str] = []
    contexts = []

    def open_(path: str = "/", *, width: int = 1440, scheme: str = "light", script: bool = True) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(origin + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    refused = "Failed to load resource: the server responded with a status of "
    wanted = tuple(refused + status for status in ("401", "403", "404", "422", "429"))  # pages about errors carry their status
    wanted += ("Failed to load resource: net::ERR_INTERNET_DISCONNECTED",)  # of a page that a test takes off the network
    assert [text for text in complaints if not text.startswith(wanted)] == []


def screenshot(page: Page, name: str) -> None:
    """Keep a picture of the whole page."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
