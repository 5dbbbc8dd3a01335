"""``shardplan worker``: does the sweeps that services on the same PostgreSQL were asked for; any number of them may run."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from functools import partial

from procrastinate import App

from app.cli.base import EXIT_USAGE, Parser
from app.configured import hub_of, limits_of, sweep_options
from app.observability import configure_logging
from app.services.plan import planned
from app.services.request import PlanRequest
from app.services.sweeps.jobs import Leaving, register, work_until_told
from app.services.sweeps.rows import RowMaker
from app.services.sweeps.work import ChunkWorker
from app.settings import AppSettings
from app.store import migrate
from app.store.jobs import job_engine
from app.store.session import Database
from app.web.schemas import EXAMPLE_REQUEST


def add_worker(command: Parser) -> None:
    """It has no options; settings say all."""
    command.set_defaults(run=_worker)


def _worker(_: argparse.Namespace) -> int:
    settings = AppSettings()
    if settings.database_url.startswith("sqlite"):
        print("SHARDPLAN_DATABASE_URL names a SQLite file, whose sweeps the service does itself; workers need PostgreSQL", file=sys.stderr)
        return EXIT_USAGE
    configure_logging(settings.log_level, settings.log_format, quiet=("procrastinate",))
    planned(PlanRequest.model_validate(EXAMPLE_REQUEST))  # reads catalogues and templates, once
    gc.collect()
    gc.freeze()
    asyncio.run(_run(settings))
    return 0


async def _run(settings: AppSettings) -> None:
    """Work until a signal says to leave; a second one does not wait for the chunk that was begun."""
    limits, hub = limits_of(settings), hub_of(settings)
    database, leaving = Database(settings.database_url, limits), Leaving(settings.shutdown_timeout_s)
    worker = ChunkWorker(database, RowMaker(hub), sweep_options(settings))

    def build() -> App:
        engine = job_engine(settings.database_url, limits)
        register(engine, database, worker, leaving)
        return engine

    prepare = partial(migrate.upgrade if settings.migrate else migrate.require, settings.database_url)
    working = asyncio.create_task(work_until_told(build, prepare, leaving, settings.sweep_lease_s))

    def leave() -> None:
        if not leaving.asked:
            working.cancel()  # procrastinate then takes no more jobs, and waits for the one it has
        leaving.ask()

    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, leave)
    try:
        await working
    except asyncio.CancelledError:
        if not leaving.asked:
            raise
    finally:
        database.close()
        if hub is not None:
            hub.close()
