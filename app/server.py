"""How serving processes live and end: one or several on a socket, each drained before it leaves."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.supervisors.multiprocess import Multiprocess, Process

_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_HEALTHCHECK_S = 30
"""Longest time a worker may take to say that it lives: it reads its catalogues before it first does."""


class DrainingServer(uvicorn.Server):
    """On SIGTERM ``/readyz`` turns 503 first, while requests are still taken; only then the socket is closed.

    A load balancer that has not asked since would otherwise send requests to a closed socket. A second signal, or Ctrl-C,
    does not wait. Nor does a worker whose parent is gone: nobody would ever end it.
    """

    def __init__(self, config: uvicorn.Config, draining: threading.Event, delay_s: float, *, parent: int | None = None) -> None:
        super().__init__(config)
        self._draining, self._delay_s, self._parent = draining, delay_s, parent
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
        if self._parent is not None and os.getppid() != self._parent:
            self._draining.set()
            self.should_exit = True
        return await super().on_tick(counter)


class _Worker(Process):
    """One of several serving processes. It makes the application itself, for a new process inherits nothing of this one."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], make: Callable[[], FastAPI], delay_s: float) -> None:
        self._make, self._delay_s, self._parent = make, delay_s, os.getpid()
        super().__init__(config, sockets)

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to leave; runs in the new process."""
        app = self._make()
        self.config.app = app
        self._server = DrainingServer(self.config, app.state.draining, self._delay_s, parent=self._parent)
        super().target(sockets)


class Workers(Multiprocess):
    """Keeps as many serving processes as configured on one socket, and starts another for each that dies."""

    def __init__(self, config: uvicorn.Config, make: Callable[[], FastAPI], delay_s: float) -> None:
        self._make, self._delay_s = make, delay_s
        config.timeout_worker_healthcheck = _HEALTHCHECK_S
        super().__init__(config, _sockets(config))

    def run(self) -> None:
        """Serve until a signal. Their counters lie in a folder that all of them write and any of them reads."""
        with tempfile.TemporaryDirectory(prefix="shardplan-metrics-") as folder:
            os.environ.setdefault(_METRICS_FOLDER, folder)
            for left in Path(os.environ[_METRICS_FOLDER]).glob("*.db"):
                left.unlink()
            super().run()

    def init_processes(self) -> None:
        """Start all of them."""
        self.processes = [self._start(listener) for listener in self.sockets]

    def keep_subprocess_alive(self) -> None:
        """Replace what died or hangs, and forget its gauges."""
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set() or process.is_alive(timeout=_HEALTHCHECK_S):
                continue
            process.kill()
            process.join()
            mark_process_dead(process.pid)  # type: ignore[no-untyped-call]
            self.processes[index] = self._start(self.sockets[index])

    def _start(self, listener: socket.socket) -> Process:
        process = _Worker(self.config, [listener], self._make, self._delay_s)
        process.start()
        return process


def _sockets(config: uvicorn.Config) -> list[socket.socket]:
    """A listening socket for each worker, among which the kernel deals connections out evenly.

    On one socket, whichever worker is awake takes all connections that wait. These stay open in this process, so that what is
    dealt to a worker that died waits for its successor.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listeners = []
    for _ in range(config.workers):
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((config.host, config.port))
        listener.set_inheritable(True)
        listeners.append(listener)
    return listeners
