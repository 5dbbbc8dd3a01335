"""The service: settings in, a FastAPI application out."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.staticfiles import StaticFiles

from app import ENGINE_VERSION, telemetry
from app.configured import hub_of, limits_of, sweep_options
from app.domain.errors import UnavailableError
from app.ingest.hub import Hub
from app.ingest.hub_errors import MissingExtraError
from app.observability import Metrics, configure_logging
from app.resources import resource_dir
from app.server import DrainingServer, Workers
from app.services.calibrate import Calibrator
from app.services.effort import EFFORT
from app.services.key_check import KeyCheck
from app.services.measurements import Measurements
from app.services.plan import planned
from app.services.request import PlanRequest
from app.services.saved_plans import SavedPlans
from app.services.sweeps.kept import Sweeps
from app.services.sweeps.rows import RowMaker
from app.services.sweeps.work import ChunkWorker, LocalQueue
from app.settings import AppSettings
from app.store.jobs import defer_chunks
from app.store.keeper import SchemaKeeper
from app.store.migrate import require, upgrade
from app.store.session import Database
from app.web import (
    api,
    audit_pages,
    compare_pages,
    health,
    measurement_pages,
    measurements,
    middleware,
    openapi,
    pages,
    problems,
    sign_in,
    sweeps,
)
from app.web.assets import VendoredFiles
from app.web.schemas import EXAMPLE_REQUEST


def create_app(settings: AppSettings | None = None) -> FastAPI:
    """Build the application; the database is migrated when it starts or, if it is away or somebody else's to migrate, later."""
    settings = settings or AppSettings()
    configure_logging(settings.log_level, settings.log_format)
    EFFORT.timeout_s = settings.search_timeout_s
    database, hub = Database(settings.database_url, limits_of(settings)), hub_of(settings)
    keeper = SchemaKeeper(settings.database_url, migrate=upgrade if settings.migrate else require)
    draining, check, calibrator = threading.Event(), KeyCheck(database), Calibrator(database, enabled=settings.calibrate)
    database.on_not_migrated = keeper.wake
    kept_sweeps, queue = _sweeps(settings, database, hub)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(keeper.start, wait_s=settings.database_connect_timeout_s)
        await asyncio.to_thread(calibrator.start)
        if queue is not None:
            queue.start()
        yield
        draining.set()
        if queue is not None:
            await asyncio.to_thread(queue.close)
        await asyncio.to_thread(keeper.close)
        check.close()
        await asyncio.to_thread(calibrator.close)
        await asyncio.to_thread(stop_telemetry)
        database.close()
        if hub is not None:
            hub.close()

    app = FastAPI(
        title="Shardplan", version=ENGINE_VERSION, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="How to shard one training run with DeepSpeed, FSDP2 or DDP: memory, traffic, time and the file that does it.",
    )  # fmt: skip
    app.state.database, app.state.hub = database, hub
    app.state.schema_keeper, app.state.draining, app.state.migrates = keeper, draining, settings.migrate
    app.state.saved_plans = SavedPlans(database, page_size_max=settings.page_size_max, on_deleted=calibrator.refresh)
    app.state.measurements, app.state.sweeps = Measurements(database, calibrator), kept_sweeps
    app.state.key_check, app.state.list_plans = check, settings.list_plans
    _add_routes(app, settings)
    openapi.install(app, settings)
    app.mount("/static/vendor", VendoredFiles(directory=resource_dir("static") / "vendor"), name="vendor")
    app.mount("/static", StaticFiles(directory=resource_dir("static")), name="static")
    problems.install(app, pages.problem_page)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    middleware.install(app, settings, _metrics(settings, database, kept_sweeps))
    stop_telemetry = telemetry.start(app, database.engine) if settings.telemetry else lambda: None
    return app


def _add_routes(app: FastAPI, settings: AppSettings) -> None:
    app.include_router(compare_pages.router)  # before the pages: /plans/compare is no plan's id
    app.include_router(measurements.router)  # likewise: measurements are no plan's file
    app.include_router(measurement_pages.router)
    app.include_router(pages.router)
    app.include_router(api.router)
    app.include_router(audit_pages.router)
    app.include_router(sweeps.router)
    app.include_router(health.router)
    if settings.require_keys:
        app.include_router(sign_in.router)


def _sweeps(settings: AppSettings, database: Database, hub: Hub | None) -> tuple[Sweeps, LocalQueue | None]:
    """The use cases of sweeps, and on SQLite the thread that does the work, for which PostgreSQL has ``shardplan worker``."""
    options = sweep_options(settings)
    if database.engine.dialect.name == "postgresql":
        return Sweeps(database, options, defer=defer_chunks), None
    queue = LocalQueue(ChunkWorker(database, RowMaker(hub), options))
    return Sweeps(database, options, wake=queue.wake), queue


def _unfinished(kept: Sweeps) -> Iterator[tuple[str, str, float]]:
    """What waits in the database, for ``/metrics``; nothing where it does not answer."""
    with suppress(UnavailableError):
        swept, chunks = kept.unfinished()
        yield "sweeps_unfinished", "Sweeps that wait or run.", swept
        yield "sweep_chunks_unfinished", "Their parts that are not done.", chunks


def _metrics(settings: AppSettings, database: Database, kept: Sweeps) -> Metrics:
    metrics, most = Metrics(), settings.database_pool_size + settings.database_max_overflow
    metrics.watch("pool_connections_in_use", "Database connections that a transaction holds.", database.connections_in_use)
    metrics.watch("pool_connections_open", "Database connections open, in use or not.", database.connections_open)
    metrics.watch("pool_connections_limit", "Database connections this process opens at most.", lambda: most)
    metrics.ask(lambda: _unfinished(kept))
    return metrics


def serve() -> None:
    """Serve on the configured address until stopped, with as many processes as configured; raises ``MissingExtraError``."""
    settings = AppSettings()
    config = uvicorn.Config(
        f"{__name__}:create_app", host=settings.host, port=settings.port, workers=settings.workers, log_config=None,
        timeout_graceful_shutdown=settings.shutdown_timeout_s, server_header=False,
    )  # fmt: skip
    if settings.workers > 1:
        hub_of(settings)  # what is missing is said once, before processes that would all say it
        configure_logging(settings.log_level, settings.log_format)
        Workers(config, _warm_app, settings.drain_s).run()
        return
    config.app = app = _warm_app()
    with suppress(KeyboardInterrupt):  # Ctrl-C has been obeyed by the time it is raised
        DrainingServer(config, app.state.draining, settings.drain_s).run()


def _warm_app() -> FastAPI:
    """The application of a serving process, with catalogues and templates read, so that no client waits for that."""
    app = create_app()
    planned(PlanRequest.model_validate(EXAMPLE_REQUEST))
    gc.collect()
    gc.freeze()  # what lives as long as the process need not be looked through again: up to 0.1 s in one unlucky request
    return app


if __name__ == "__main__":
    try:
        serve()
    except MissingExtraError as missing:
        raise SystemExit(str(missing)) from missing
