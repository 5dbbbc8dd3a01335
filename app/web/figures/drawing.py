"""Specifications to SVG and PNG, by vl-convert in a process of its own.

Its engine takes 0.8 s and about 100 MB to start, 50 to 300 ms for a drawing, and lets no other Python run meanwhile: beside the
process that serves, that delays nobody. It is started at the first drawing, draws one at a time, and drawings are kept.
"""

from __future__ import annotations

import atexit
import subprocess  # nosec B404
import sys
import threading
from functools import lru_cache
from html import escape
from pathlib import Path

import orjson

from app.domain.errors import UnavailableError
from app.services.effort import Turns
from app.web.figures.style import variables

_ENGINE = Path(__file__).with_name("engine.py")
_KEPT = 128
_SCALE = 2.0
"""Pixels of a PNG per CSS pixel."""
_PATIENCE_S = 30.0


class Drawer:
    """The engine's process; a new one after one that died or did not answer."""

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._turns, self._patience_s = Turns(1), patience_s
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def draw(self, kind: str, spec: str) -> bytes:
        """One drawing.

        Args:
            kind: ``svg`` or ``png``.
            spec: Vega-Lite as JSON.

        Raises:
            UnavailableError: the engine died or takes too long.
            RuntimeError: it says the specification is none.
        """
        if not self._turns.take(self._patience_s):
            raise UnavailableError("too many charts are being drawn; ask again")
        try:
            return self._drawn(orjson.dumps({"kind": kind, "spec": spec, "scale": _SCALE}) + b"\n")
        finally:
            self._turns.give()

    def close(self) -> None:
        """End the engine, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _drawn(self, line: bytes) -> bytes:
        process = self._running()
        overdue = threading.Timer(self._patience_s, process.kill)
        overdue.start()
        try:
            return _exchange(process, line)
        except OSError as error:
            self.close()
            raise UnavailableError("the engine that draws charts ended; ask again, it is started anew") from error
        finally:
            overdue.cancel()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-P", str(_ENGINE)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603  # nosec B603
        return self._process


def _exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    if process.stdin is None or process.stdout is None:
        raise BrokenPipeError
    process.stdin.write(line)
    process.stdin.flush()
    head = process.stdout.readline()
    size = abs(int(head)) if head else 0
    drawn = process.stdout.read(size)
    if not head or len(drawn) < size:
        raise BrokenPipeError
    if head.startswith(b"-"):
        raise RuntimeError(f"no chart: {drawn.decode(errors='replace')[:500]}")
    return drawn


_drawer = Drawer()


@lru_cache(maxsize=_KEPT)
def svg(spec: str, title: str, *, variable: bool) -> str:
    """A drawing as SVG.

    Args:
        spec: Vega-Lite as JSON.
        title: what it says, for those who do not see it.
        variable: its colours are CSS variables, which the drawing then brings along for both schemes.
    """
    head, end, rest = _drawer.draw("svg", spec).decode().partition(">")
    return f"{head}{end}<title>{escape(title)}</title>{variables() if variable else ''}{rest}"


@lru_cache(maxsize=_KEPT // 4)
def png(spec: str) -> bytes:
    """A drawing as PNG, at twice its size in CSS pixels."""
    return _drawer.draw("png", spec)
