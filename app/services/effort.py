"""How much of this process one question may take, and how many large ones at once.

Most questions take a few hundredths of a second and begin at once. One that has computed for longer waits for a turn, of which there
are as many as CPUs, so that large questions cannot slow each other and the small ones down without end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.domain.errors import UnavailableError
from app.domain.search.budget import Budget

SMALL_S = 0.3
"""CPU seconds of its thread after which a question is a large one."""
DEFAULT_TIMEOUT_S = 30.0


def cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        self._turns, self._used_s = threading.BoundedSemaphore(at_once), used_s

    @contextmanager
    def budget(self) -> Iterator[Budget]:
        """What one question may cost, for as long as it is answered on this thread.

        Its ``go_on`` raises ``UnavailableError`` where no turn comes.
        """
        began, deadline, has_turn = self._used_s(), time.monotonic() + self.timeout_s, False

        def go_on() -> bool:
            nonlocal deadline, has_turn
            if not has_turn and self._used_s() - began > SMALL_S:
                waits_since = time.monotonic()
                if not self._turns.acquire(timeout=self.timeout_s):
                    raise UnavailableError(
                        "this server is busy with other large searches; pin a strategy, a degree of parallelism or the micro-batch "
                        "to make this one small, or send it again"
                    )
                has_turn, deadline = True, deadline + time.monotonic() - waits_since
            return time.monotonic() < deadline

        try:
            yield Budget(go_on=go_on)
        finally:
            if has_turn:
                self._turns.release()


EFFORT = Effort(at_once=cpus(), timeout_s=DEFAULT_TIMEOUT_S)
"""That of this process; the service sets its ``timeout_s``."""
