"""How much of this process one question may take, and how many are answered at once.

Most questions take a few hundredths of a second: they come one after the other, in the order they were asked (``turns``). One that has
computed for longer gives its turn to the next and waits for one of those that large questions have among themselves, so that no small
one ever waits for a large one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from app.domain.errors import UnavailableError
from app.domain.search.budget import Budget
from app.services.turns import Turns

SMALL_AT_ONCE = 2
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
            timeout_s: longest time one question is searched, and longest wait of a large one for its turn.
            used_s: CPU seconds of the calling thread.
        """
        self.timeout_s = timeout_s
        self._small, self._large, self._used_s = Turns(SMALL_AT_ONCE), threading.BoundedSemaphore(at_once), used_s

    @contextmanager
    def budget(self) -> Iterator[Budget]:
        """Wait for a turn; what one question may cost, for as long as it is answered on this thread.

        Its ``go_on`` raises ``UnavailableError`` where a large question waits for its turn in vain.
        """
        with ExitStack() as turn:
            turn.enter_context(self._small.taken())
            began, deadline, large = self._used_s(), time.monotonic() + self.timeout_s, False

            def go_on() -> bool:
                nonlocal deadline, large
                if not large and self._used_s() - began > SMALL_S:
                    turn.close()
                    deadline, large = deadline + self._wait(), True
                    turn.callback(self._large.release)
                return time.monotonic() < deadline

            yield Budget(go_on=go_on)

    def _wait(self) -> float:
        """Wait for a turn among the large questions; returns the seconds that took."""
        since = time.monotonic()
        if not self._large.acquire(timeout=self.timeout_s):
            raise UnavailableError(
                "this server is busy with other large searches; pin a strategy, a degree of parallelism or the micro-batch to make this "
                "one small, or send it again"
            )
        return time.monotonic() - since


EFFORT = Effort(at_once=cpus(), timeout_s=DEFAULT_TIMEOUT_S)
"""That of this process; the service sets its ``timeout_s``."""
