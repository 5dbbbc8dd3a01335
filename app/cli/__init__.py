"""The ``shardplan`` command over the same use cases as the service.

Nothing is imported here that takes time: whoever interrupts the command while it starts is to be obeyed as quickly as later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

EXIT_INTERRUPTED, EXIT_READER_GONE = 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    The exit code of ``plan`` says fits (0), tight (1), does not fit (2), not valid (3) or a file differs (4); that of ``audit``
    whether the run fails (2) or, strictly, is warned about (1). That of the others says done (0) or not valid (3), and of all a
    wrong command line or setting (64) or a service, database or hub that does not answer (69).
    """
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        with _ending_at_once():
            from app.cli.command import parser_for, run

            parser = parser_for(typed)
        return run(parser, typed)
    except BrokenPipeError:  # whoever read has heard enough; what is left in the buffer must not fail once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READER_GONE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """While libraries are imported Ctrl-C ends the process: they may swallow an exception, and nothing is open yet."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
