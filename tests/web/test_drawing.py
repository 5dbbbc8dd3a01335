"""The engine that draws: beside the serving process, replaced when it dies, gone with whoever started it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import psutil
import pytest

from app.domain.errors import UnavailableError
from app.web.figures.drawing import Drawer

SPEC = json.dumps({"data": {"values": [{"a": 1}]}, "mark": "bar", "encoding": {"x": {"field": "a", "type": "quantitative"}}})


def test_an_engine_that_dies_is_said_and_replaced() -> None:
    """Between two drawings nobody notices; one that takes too long is told to ask again."""
    drawer = Drawer()
    assert drawer.draw("svg", SPEC).startswith(b"<svg")
    process = drawer._process
    assert process
    process.kill()
    process.wait()
    assert drawer.draw("png", SPEC).startswith(b"\x89PNG")
    overdue = Drawer(patience_s=0.01)
    with pytest.raises(UnavailableError, match="started anew"):
        overdue.draw("svg", SPEC)
    drawer.close()
    assert overdue._process is None


def test_it_draws_nothing_from_elsewhere() -> None:
    """Data of another address is refused, and what is no specification is an error; both leave the engine running."""
    drawer = Drawer()
    with pytest.raises(RuntimeError, match="no chart"):
        drawer.draw("svg", json.dumps({"mark": "nothing"}))
    elsewhere = json.loads(SPEC) | {"data": {"url": "https://example.com/data.json"}}
    with pytest.raises(RuntimeError, match="not allowed"):
        drawer.draw("svg", json.dumps(elsewhere))
    process = drawer._process
    assert process
    assert process.poll() is None
    drawer.close()


def test_others_go_on_while_it_draws() -> None:
    """The longest pause of another thread is far below what a first drawing takes."""
    drawer, pauses, done = Drawer(), list[float](), threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    drawer.draw("svg", SPEC)
    took = time.perf_counter() - started
    done.set()
    watcher.join()
    drawer.close()
    assert max(pauses) < took / 2


def test_it_ends_with_who_started_it() -> None:
    """Also where that one is killed."""
    code = (
        "import time\nfrom app.web.figures.drawing import Drawer\ndrawer = Drawer()\n"
        f"drawer.draw('svg', {SPEC!r})\nprint(drawer._process.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        engine = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        owner.wait()
        engine.wait(timeout=10)
        assert not engine.is_running()
