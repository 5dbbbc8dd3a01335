"""The job engine: procrastinate, which keeps its jobs in the same PostgreSQL: a sweep and its jobs are saved together or not at all.

A job names one chunk of a sweep. What is done about it is up to ``services``; here is how jobs come to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job
from procrastinate.manager import JobManager
from procrastinate.schema import SchemaManager
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

from app.domain.errors import UnavailableError
from app.store.outages import NotMigratedError
from app.store.session import Database, DatabaseOptions, postgres_arguments
from app.store.sweeps import ChunkKey, SweepRepository

CHUNK_TASK, KEEPING_TASK = "shardplan.sweep_chunk", "shardplan.keep_house"
QUEUE = "sweeps"
HOUSE_PRIORITY = 1000
"""Above that of all chunks, which is none or negative."""
OUTAGES = (ConnectorException, psycopg.Error, OSError)
"""What the engine raises where the database is away."""
_DEFERRER = JobManager(SyncPsycopgConnector())
"""Makes jobs on connections it is given; it opens none of its own."""


def job_engine(database_url: str, options: DatabaseOptions) -> App:
    """The engine on a PostgreSQL; nothing is opened yet."""
    conninfo = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    timeout_s = float(options.connect_timeout_s)
    return App(connector=PsycopgConnector(conninfo=conninfo, kwargs=postgres_arguments(options), min_size=1, max_size=3, timeout=timeout_s))


def defer_chunks(session: Session, chunks: Sequence[ChunkKey]) -> None:
    """Make a job for each chunk, in the caller's transaction.

    First chunks go before later ones, whichever sweep they are of: a small sweep does not wait for a large one to end.

    Raises:
        UnavailableError: the database does not answer, or has no tables for jobs.
    """
    jobs = [_job_of(chunk) for chunk in chunks]
    try:
        if jobs:
            _DEFERRER.batch_defer_jobs(jobs, connection=session.connection().connection.driver_connection)
    except ConnectorException as error:
        raise _outage_of(error) from error


def defer_lost_chunks(database: Database) -> None:
    """Make jobs for chunks that nobody works on and that no job waits for: whatever became of theirs, they are done.

    Raises:
        UnavailableError: the database does not answer.
        procrastinate.exceptions.AlreadyEnqueued: somebody else did so at the same moment.
    """
    with database.session(write=True) as session:
        free = SweepRepository(session).free_chunks(datetime.now(UTC))
        waiting = _waiting_chunks(session) if free else set()
        defer_chunks(session, [chunk for chunk in free if chunk not in waiting])


def _waiting_chunks(session: Session) -> set[ChunkKey]:
    """Chunks that a job waits for a worker for."""
    rows = session.execute(
        text("SELECT args->>'sweep_id', (args->>'number')::int FROM procrastinate_jobs WHERE status = 'todo' AND task_name = :task"),
        {"task": CHUNK_TASK},
    )
    return {ChunkKey(sweep_id, number) for sweep_id, number in rows}


def _outage_of(error: ConnectorException) -> Exception:
    """What the engine's exception means: an ``UnavailableError`` where trying again helps, else the exception itself."""
    cause = error.__cause__
    if isinstance(cause, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedObject):
        return NotMigratedError("the database does not have the tables for jobs; they are made as soon as it can be migrated")
    if isinstance(cause, psycopg.OperationalError):
        return UnavailableError("the database does not answer at the moment; try again in a few seconds")
    return error


def schema_sql() -> Any:
    """What makes the engine's own tables, of the installed release."""
    return SchemaManager.get_schema()


def newest_library_migration() -> str:
    """Name of the newest change to those tables that the installed release knows of."""
    return max(path.name for path in Path(SchemaManager.get_migrations_path()).glob("*.sql"))


def _job_of(chunk: ChunkKey) -> Job:
    name = f"{chunk.sweep_id}:{chunk.number}"
    return Job(
        id=None, queue=QUEUE, lock=None, queueing_lock=name, task_name=CHUNK_TASK, priority=-chunk.number, task_kwargs=chunk._asdict()
    )
