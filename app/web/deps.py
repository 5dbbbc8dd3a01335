"""What endpoints ask for, taken from ``app.state``, where ``create_app`` puts it."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from app.observability import Metrics
from app.services.saved_plans import SavedPlans
from app.settings import AppSettings
from app.store.session import Database


def get_settings(request: Request) -> AppSettings:
    """Settings the app was created with."""
    return cast(AppSettings, request.app.state.settings)


def get_database(request: Request) -> Database:
    """The process's database."""
    return cast(Database, request.app.state.database)


def get_saved_plans(request: Request) -> SavedPlans:
    """The use cases of saved plans."""
    return cast(SavedPlans, request.app.state.saved_plans)


def get_metrics(request: Request) -> Metrics:
    """The process's counters."""
    return cast(Metrics, request.app.state.metrics)


SettingsDep = Annotated[AppSettings, Depends(get_settings)]
DatabaseDep = Annotated[Database, Depends(get_database)]
SavedPlansDep = Annotated[SavedPlans, Depends(get_saved_plans)]
MetricsDep = Annotated[Metrics, Depends(get_metrics)]
