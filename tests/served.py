"""The whole service behind a socket of this machine, in a thread: for what speaks HTTP to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from app.main import create_app
from app.settings import AppSettings

START_S = 30.0


@contextmanager
def served(settings: AppSettings) -> Iterator[str]:
    """The address of a running service; it has ended when the block ends."""
    server = uvicorn.Server(uvicorn.Config(create_app(settings), host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + START_S
    while not server.started:
        assert thread.is_alive(), "the service ended while it started"
        assert time.monotonic() < deadline, "the service did not start in time"
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(START_S)
