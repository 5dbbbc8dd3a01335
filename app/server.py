"""How the process ends: it says that it is leaving, waits for that to be heard, then finishes what it has begun."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

import uvicorn


class DrainingServer(uvicorn.Server):
    """On SIGTERM ``/readyz`` turns 503 first, while requests are still taken; only then the socket is closed.

    A load balancer that has not asked since would otherwise send requests to a closed socket. A second signal, or Ctrl-C,
    does not wait.
    """

    def __init__(self, config: uvicorn.Config, draining: threading.Event, delay_s: float) -> None:
        super().__init__(config)
        self._draining, self._delay_s = draining, delay_s
        self._leave_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to leave."""
        first = not self._draining.is_set()
        self._draining.set()
        if sig == signal.SIGTERM and first and self._delay_s > 0:
            self._leave_at = time.monotonic() + self._delay_s
            return
        self._leave_at = None
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Leave when the time has come; called ten times a second."""
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            self._leave_at = None
            super().handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)
