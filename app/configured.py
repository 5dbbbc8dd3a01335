"""What an operator's settings make of a hub, a database and sweeps.

A database and sweeps are imported when they are asked for: a command that only plans needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.ingest.hub import Hub
from app.settings import AppSettings

if TYPE_CHECKING:
    from app.services.sweeps.kept import SweepOptions
    from app.store.session import DatabaseOptions


def hub_of(settings: AppSettings) -> Hub | None:
    """Where models are fetched from; None where that is switched off. Raises ``MissingExtraError``."""
    if not settings.fetch_models:
        return None
    return Hub(settings.hub_url, timeout_s=settings.fetch_timeout_s, may_be_private="hub_url" in settings.model_fields_set)


def sweep_options(settings: AppSettings) -> SweepOptions:
    """What an operator set about sweeps."""
    from app.services.sweeps.kept import SweepOptions
    from app.services.sweeps.reading import SweepLimits

    limits = SweepLimits(requests=settings.sweep_requests_max, plans=settings.sweep_plans_max)
    return SweepOptions(
        limits=limits, waiting_max=settings.sweeps_waiting_max, keep_days=settings.sweep_keep_days, lease_s=settings.sweep_lease_s
    )


def limits_of(settings: AppSettings) -> DatabaseOptions:
    """What an operator set about connections."""
    from app.store.session import DatabaseOptions

    return DatabaseOptions(
        connect_timeout_s=settings.database_connect_timeout_s, statement_timeout_s=settings.database_statement_timeout_s,
        idle_timeout_s=settings.database_idle_timeout_s, pool_size=settings.database_pool_size,
        max_overflow=settings.database_max_overflow,
    )  # fmt: skip
