"""Use case: read what a run printed when it failed or was slow, and say why and what helps."""

from __future__ import annotations

from app.services.diagnose.answer import diagnose
from app.services.diagnose.asked import DiagnoseIn, MeasuredIn, PartialRequest
from app.services.diagnose.result import Diagnosis

__all__ = ["DiagnoseIn", "Diagnosis", "MeasuredIn", "PartialRequest", "diagnose"]
