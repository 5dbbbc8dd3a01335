"""What endpoints ask for, taken from ``app.state``, where ``create_app`` puts it."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from app.ingest.hub import Hub
from app.observability import Metrics
from app.services.saved_plans import SavedPlans
from app.store.session import Database


async def get_hub(request: Request) -> Hub | None:
    """Where models are fetched from; None where that is switched off."""
    return cast(Hub | None, request.app.state.hub)


async def get_database(request: Request) -> Database:
    """The process's database."""
    return cast(Database, request.app.state.database)


async def get_saved_plans(request: Request) -> SavedPlans:
    """The use cases of saved plans."""
    return cast(SavedPlans, request.app.state.saved_plans)


async def get_metrics(request: Request) -> Metrics:
    """The process's counters."""
    return cast(Metrics, request.app.state.metrics)


HubDep = Annotated[Hub | None, Depends(get_hub)]
DatabaseDep = Annotated[Database, Depends(get_database)]
SavedPlansDep = Annotated[SavedPlans, Depends(get_saved_plans)]
MetricsDep = Annotated[Metrics, Depends(get_metrics)]
