"""Working on chunks: take one, make its rows, write them once; and what has to be looked after besides."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from app import ENGINE_VERSION
from app.domain.errors import ShardplanError
from app.services.sweeps.kept import SweepOptions
from app.services.sweeps.rows import RowMaker, pack, unpack
from app.store.session import Database
from app.store.sweeps import ChunkKey, ChunkResult, ClaimedChunk, SweepRepository

_IDLE_S, _CLOSE_S = 5.0, 30.0
_HOUSE_S = 60.0
_RENEWALS = 3
"""Signs of life in the time after which somebody without one is thought dead."""

log = logging.getLogger(__name__)


class ChunkWorker:
    """Works on chunks of sweeps, one at a time."""

    def __init__(self, database: Database, maker: RowMaker, options: SweepOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._database, self._maker, self._clock = database, maker, clock

    def work(self, key: ChunkKey, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Do a chunk, unless it is done, cancelled or somebody else's; False where it was given back because ``go_on`` said so.

        Raises:
            UnavailableError: the database does not answer. Nothing is half-written: it is done again.
        """
        now = datetime.now(UTC)
        with self._database.session(write=True) as session:
            chunk = SweepRepository(session).claim(key, now, now + timedelta(seconds=self.options.lease_s))
        return chunk is None or self._do(chunk, go_on)

    def next_key(self) -> ChunkKey | None:
        """The chunk to do next; None where there is none that nobody works on."""
        with self._database.session() as session:
            return next(iter(SweepRepository(session).free_chunks(datetime.now(UTC), limit=1)), None)

    def delete_expired(self) -> None:
        """Delete sweeps that were finished long enough ago."""
        before = datetime.now(UTC) - timedelta(days=self.options.keep_days)
        with self._database.session(write=True) as session:
            deleted = SweepRepository(session).delete_finished(before)
        if deleted:
            log.info("%d sweeps deleted that were finished more than %g days ago", deleted, self.options.keep_days)

    def _do(self, chunk: ClaimedChunk, go_on: Callable[[], bool]) -> bool:
        renew_s = self.options.lease_s / _RENEWALS
        renew_at, wanted = self._clock() + renew_s, True

        def wanted_still() -> bool:
            nonlocal renew_at, wanted
            if self._clock() >= renew_at:
                renew_at = self._clock() + renew_s
                wanted = self._lease(chunk.key, datetime.now(UTC) + timedelta(seconds=self.options.lease_s))
            return wanted and go_on()

        rows = self._maker.rows(unpack(chunk.requests), chunk.first, chunk.detail, chunk.axes, wanted_still)
        if rows is None:
            if wanted:
                self._lease(chunk.key, None)
            return not wanted
        result = ChunkResult(results=pack(rows.lines), engine_version=ENGINE_VERSION, counts=rows.counts)
        with self._database.session(write=True) as session:
            SweepRepository(session).finish(chunk.key, result, datetime.now(UTC))
        return True

    def _lease(self, key: ChunkKey, until: datetime | None) -> bool:
        with self._database.session(write=True) as session:
            return SweepRepository(session).renew(key, until)


class LocalQueue:
    """One thread of the service that works on the chunks in its database: for SQLite, where no other process does.

    Several services on one file share the work: a chunk belongs to whoever took it, as long as that one gives signs of life.
    """

    def __init__(self, worker: ChunkWorker) -> None:
        self._worker = worker
        self._wanted, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeps", daemon=True)

    def start(self) -> None:
        """Begin, with what a process before this one left."""
        self._thread.start()

    def wake(self) -> None:
        """There is something to do."""
        self._wanted.set()

    def close(self) -> None:
        """Stop after the request that is being planned; the rest of its chunk is given back."""
        self._stopped.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        house_at = 0.0
        while not self._stopped.is_set():
            self._wanted.clear()
            try:
                if time.monotonic() >= house_at:
                    house_at = time.monotonic() + _HOUSE_S
                    self._worker.delete_expired()
                key = self._worker.next_key()
                if key is not None:
                    self._worker.work(key, lambda: not self._stopped.is_set())
                    continue
            except ShardplanError as error:  # the database is away, locked or not migrated: whoever asks is told, and this waits
                log.debug("sweeps wait: %s", error.detail)
            except Exception:  # nothing may end the thread that all sweeps wait for
                log.exception("unexpected error while working on sweeps")
            self._wanted.wait(min(_IDLE_S, self._worker.options.lease_s))
