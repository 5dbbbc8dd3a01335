"""Sees to it that the database has its tables, from the start or as soon as it can be reached."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.domain.errors import UnavailableError
from app.store.migrate import upgrade

_CLOSE_S = 5.0

log = logging.getLogger(__name__)


class SchemaKeeper:
    """One thread that migrates a database, or waits for others to, tries again while it is away, and looks again when woken.

    A failed migration does not stop the service either: planning needs no database, and ``/readyz`` says what is wrong.
    """

    def __init__(
        self, database_url: str, *, migrate: Callable[[str], None] = upgrade, retry_s: float = 1.0, failed_retry_s: float = 30.0
    ) -> None:
        self._url, self._migrate = database_url, migrate
        self._retry_s, self._failed_retry_s = retry_s, failed_retry_s
        self._tried, self._wanted, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="schema-keeper", daemon=True)

    def start(self, *, wait_s: float) -> None:
        """Begin; returns after the first try, or after ``wait_s`` where that takes longer."""
        self._thread.start()
        self._tried.wait(wait_s)

    def wake(self) -> None:
        """Look again: somebody met a table that was not there."""
        self._wanted.set()

    def close(self) -> None:
        """Stop; a migration that is running is given a few seconds to finish."""
        self._stopped.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        pause_s, complained = self._try(complained=False)
        while not self._stopped.wait(pause_s or self._retry_s):
            if pause_s is None:
                self._wanted.wait()
            self._wanted.clear()
            if not self._stopped.is_set():
                pause_s, complained = self._try(complained=complained)

    def _try(self, *, complained: bool) -> tuple[float | None, bool]:
        """Seconds until the next try, None where there is nothing left to do; and whether the log has the reason."""
        try:
            self._migrate(self._url)
        except UnavailableError as error:
            if not complained:
                log.warning("the database is not migrated yet: %s", error.detail, exc_info=error.__cause__)
            return self._retry_s, True
        except Exception:  # whatever a migration raises, the service goes on without it
            log.exception("the database could not be migrated; next try in %g s", self._failed_retry_s)
            return self._failed_retry_s, True
        finally:
            self._tried.set()
        if complained:
            log.info("the database is migrated")
        return None, False
