"""The chunks of sweeps as jobs of procrastinate, and the process that does them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from procrastinate import App, BaseRetryStrategy, RetryDecision
from procrastinate.exceptions import AlreadyEnqueued, UniqueViolation
from procrastinate.jobs import Job, Status

from app.domain.errors import UnavailableError
from app.services.sweeps.work import ChunkWorker
from app.store.jobs import CHUNK_TASK, HOUSE_PRIORITY, KEEPING_TASK, OUTAGES, QUEUE, defer_lost_chunks
from app.store.session import Database
from app.store.sweeps import ChunkKey

_SPARE_S = 5.0
"""Left of the time to leave for the request that is being planned when a chunk is given back."""
_AGAIN_S, _MOST_S = 5, 60
_AWAY_S = 1.0

log = logging.getLogger(__name__)


class GivenBackError(Exception):
    """The process leaves before the chunk is done: another one does it."""


class _Again(BaseRetryStrategy):
    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:
        """At once where the process leaves, later where the database or something else failed; results are written once anyway."""
        leaves = isinstance(exception, GivenBackError | asyncio.CancelledError)
        return RetryDecision(retry_in={"seconds": 0 if leaves else min(_MOST_S, _AGAIN_S * (job.attempts + 1))})


class Leaving:
    """Whether a process was told to leave, and until when it may go on with what it has begun."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._asked, self._until = threading.Event(), 0.0

    @property
    def asked(self) -> bool:
        """Whether it was."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Leave once the chunk is done, or given back in time; a second time, give it back at once."""
        self._until = 0.0 if self.asked else time.monotonic() + self.timeout_s - _SPARE_S
        self._asked.set()

    def may_go_on(self) -> bool:
        """Whether the chunk that was begun may be gone on with."""
        return not self.asked or time.monotonic() < self._until


def register(engine: App, database: Database, worker: ChunkWorker, leaving: Leaving) -> None:
    """Tell the engine what to do for its jobs."""
    lease_s = worker.options.lease_s
    every_s = max(1, min(20, int(lease_s / 3)))

    @engine.task(name=CHUNK_TASK, queue=QUEUE, retry=_Again())
    async def sweep_chunk(sweep_id: str, number: int) -> None:
        """Do a chunk, in a thread: planning would hold up the signs of life otherwise."""
        if not await asyncio.to_thread(worker.work, ChunkKey(sweep_id, number), leaving.may_go_on):
            raise GivenBackError

    @engine.periodic(cron=f"* * * * * */{every_s}")  # the last field is of seconds
    @engine.task(name=KEEPING_TASK, queue=QUEUE, queueing_lock=KEEPING_TASK, priority=HOUSE_PRIORITY)
    async def keep_house(timestamp: int) -> None:  # noqa: ARG001 (given to whatever runs periodically)
        """Do again what dead workers had begun, defer what no job is left for, and delete what is old."""
        for job in await engine.job_manager.get_stalled_jobs(seconds_since_heartbeat=lease_s):
            await _revive(engine, job)
        with contextlib.suppress(AlreadyEnqueued):  # another worker was faster
            await asyncio.to_thread(defer_lost_chunks, database)
        await asyncio.to_thread(worker.delete_expired)


async def work_until_told(build: Callable[[], App], prepare: Callable[[], object], leaving: Leaving, lease_s: float) -> None:
    """Do jobs until told to leave, whatever becomes of the database meanwhile.

    Args:
        build: an engine with its tasks, a new one each time the database was away.
        prepare: called before that in a thread; raises ``UnavailableError`` while there is nothing to work on.
        lease_s: after how long without a sign of life a worker is thought dead.
    """
    complained = False
    while not leaving.asked:
        try:
            await asyncio.to_thread(prepare)
            engine = build()
            async with engine.open_async():
                complained = False
                await engine.run_worker_async(
                    queues=[QUEUE], concurrency=1, delete_jobs="always", install_signal_handlers=False,
                    shutdown_graceful_timeout=leaving.timeout_s, update_heartbeat_interval=lease_s / 3, stalled_worker_timeout=lease_s,
                    fetch_job_polling_interval=min(5.0, lease_s / 3),
                )  # fmt: skip
        except (UnavailableError, *OUTAGES) as error:
            if not complained:
                log.warning("the worker waits for the database: %s", error, exc_info=error)
            complained = True
        await asyncio.sleep(_AWAY_S)


async def _revive(engine: App, job: Job) -> None:
    """Put a job of a dead worker back into the queue, or away where it is there again already."""
    if job.id is None:
        return
    try:
        if job.task_name == CHUNK_TASK:
            await engine.job_manager.retry_job(job, retry_at=datetime.now(UTC))
            return
    except UniqueViolation:
        log.debug("job %d is in the queue again already", job.id)
    await engine.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)
