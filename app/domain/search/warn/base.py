"""How a warning is made."""

from __future__ import annotations

from typing import Literal

from app.domain.plan import PlanWarning

Severity = Literal["info", "warning", "error"]


def warning(code: str, message: str, field: str, fix: str, severity: Severity = "warning") -> PlanWarning:
    """One warning: what was given and what really happens, where it was said, and what to do."""
    return PlanWarning(code=code, severity=severity, message=message, field=field, fix=fix)
