"""A typed client of the service: ``from app.client import Client``.

It needs neither the engine nor a database, and imports neither. What is named here is imported when it is first asked for, so that
who needs only an error does not wait for HTTP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.client.client import Client
    from app.client.errors import AnswerError, ProblemError, ServiceUnavailableError, SweepNotDoneError
    from app.client.transport import Retry
    from app.services.request import PlanRequest
else:
    _HOMES = {
        "AnswerError": "app.client.errors",
        "Client": "app.client.client",
        "PlanRequest": "app.services.request",
        "ProblemError": "app.client.errors",
        "Retry": "app.client.transport",
        "ServiceUnavailableError": "app.client.errors",
        "SweepNotDoneError": "app.client.errors",
    }

    def __getattr__(name: str) -> object:
        """A name of ``__all__``, from where it is defined."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found


__all__ = ["AnswerError", "Client", "PlanRequest", "ProblemError", "Retry", "ServiceUnavailableError", "SweepNotDoneError"]
