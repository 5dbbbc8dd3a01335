"""Shapes of what runs measured, and of what that says about a plan, for the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

OPEN = ConfigDict(extra="allow")
"""As in ``schemas``, which needs these."""


class CalibratedMemoryOut(BaseModel):
    """Totals of a GPU with the fitted terms corrected; counted and derived terms are as in ``recommended``."""

    model_config = OPEN

    factor: float = Field(description="of the fitted terms")
    runs: int
    bytes: int = Field(description="what that changes in device_bytes")
    device_bytes: int


class CalibratedTimeOut(BaseModel):
    """A step with the fitted terms corrected."""

    model_config = OPEN

    factor: float = Field(description="of the fitted terms")
    runs: int
    step_s: float
    tokens_per_s: float


class CalibrationOut(BaseModel):
    """What runs measured on this service say beside the engine's figures, which stay as they are."""

    model_config = OPEN

    runs: int
    applied: bool
    says: str
    memory: CalibratedMemoryOut | None
    time: CalibratedTimeOut | None


class MeasurementOut(BaseModel):
    """What one run really took, beside what its plan predicted."""

    model_config = OPEN

    id: str
    created_at: datetime
    peak_bytes: int | None
    counter: Literal["allocated", "reserved", "device"] | None
    step_s: float | None
    tokens_per_s: float | None
    oom: bool
    note: str
    other_peaks: dict[str, int]
    moments: dict[str, int]
    expandable_segments: bool | None
    versions: dict[str, str]
    engine_version: str = Field(description="of the engine that predicted")
    predicted: dict[str, float | None] = Field(description="peak_bytes by the same counter, and step_s, of the plan")
    error_frac: dict[str, float | None] = Field(description="(predicted − measured) / measured, of peak_bytes and step_s")
    used_for: list[Literal["memory", "time"]] = Field(description="fitted terms it has a say in")
    not_used: str = Field(description="why it has none in some; empty where it has")
    links: dict[str, str]


class MeasurementListOut(BaseModel):
    """The measurements of one plan, the newest first, and what all runs of such setups say about it."""

    model_config = OPEN

    items: list[MeasurementOut]
    calibration: CalibrationOut
