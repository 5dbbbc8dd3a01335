"""A typed client of the service: ``from app.client import Client``.

It needs neither the engine nor a database, and imports neither.
"""

from __future__ import annotations

from app.client.client import Client
from app.client.errors import AnswerError, ProblemError, ServiceUnavailableError, SweepNotDoneError
from app.client.transport import Retry
from app.services.request import PlanRequest

__all__ = ["AnswerError", "Client", "PlanRequest", "ProblemError", "Retry", "ServiceUnavailableError", "SweepNotDoneError"]
