"""Who computes when in this process: few questions at once, in the order they came, and the large ones apart.

Planning is Python code that holds the interpreter: more of it at once finishes nothing earlier, and every thread more delays the
one that reads and answers requests. Most questions take a few hundredths of a second. One that has computed for longer makes way
and waits for one of the turns of large ones, so that those cannot slow each other and the small ones down without end.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.domain.errors import UnavailableError
from app.domain.search.budget import Budget

SMALL_AT_ONCE = 2
SMALL_S = 0.3
"""CPU seconds of its thread after which a question is a large one."""
DEFAULT_TIMEOUT_S = 30.0


def cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Turns:
    """Lets ``size`` threads go on at a time and hands each turn to whoever has waited longest."""

    def __init__(self, size: int) -> None:
        self._lock, self._free = threading.Lock(), size
        self._waiting: deque[threading.Lock] = deque()

    def take(self, timeout_s: float = -1) -> bool:
        """Wait for a turn; False where none came in time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_s):  # handed over
            return True
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
        return True  # handed over at the last moment

    def give(self) -> None:
        """Give a turn on."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class Effort:
    """The turns of one process."""

    def __init__(self, *, at_once: int, timeout_s: float, used_s: Callable[[], float] = time.thread_time) -> None:
        """Hand out turns.

        Args:
            at_once: large questions that may run at the same time.
            timeout_s: longest time one question is searched, and longest wait for a turn before it.
            used_s: CPU seconds of the calling thread.
        """
        self.timeout_s = timeout_s
        self._small, self._large, self._used_s = Turns(SMALL_AT_ONCE), Turns(at_once), used_s

    @contextmanager
    def budget(self) -> Iterator[Budget]:
        """What one question may cost, for as long as it is answered on this thread; waits for a turn first.

        Its ``go_on`` raises ``UnavailableError`` where no turn of large ones comes.
        """
        self._small.take()
        turns: Turns | None = self._small
        began, deadline = self._used_s(), time.monotonic() + self.timeout_s

        def go_on() -> bool:
            nonlocal deadline, turns
            if turns is self._small and self._used_s() - began > SMALL_S:
                waits_since = time.monotonic()
                turns.give()
                turns = None
                if not self._large.take(self.timeout_s):
                    raise UnavailableError(
                        "this server is busy with other large searches; pin a strategy, a degree of parallelism or the micro-batch "
                        "to make this one small, or send it again"
                    )
                turns, deadline = self._large, deadline + time.monotonic() - waits_since
            return time.monotonic() < deadline

        try:
            yield Budget(go_on=go_on)
        finally:
            if turns is not None:
                turns.give()


EFFORT = Effort(at_once=cpus(), timeout_s=DEFAULT_TIMEOUT_S)
"""That of this process; the service sets its ``timeout_s``."""
