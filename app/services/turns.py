"""Who computes when: few requests at once, in the order they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets ``size`` threads compute at a time and hands each turn on to whoever has waited longest.

    Planning is Python code that holds the interpreter: more of it at once finishes nothing earlier, and every thread more
    delays the one that reads and answers requests.
    """

    def __init__(self, size: int) -> None:
        self._lock, self._free = threading.Lock(), size
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn, and give it on at the end."""
        self._take()
        try:
            yield
        finally:
            self._give()

    def _take(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until it is handed over

    def _give(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


PLANNING = Turns(2)
"""Shared by everything that plans for a request."""
