"""Shapes of what sets plans against each other, for the OpenAPI document and the client."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from app.web.schemas import OPEN, PlanOut, Verdict


class ChangeOut(BaseModel):
    """One figure that moved."""

    model_config = OPEN

    section: str
    key: str
    unit: str = Field(description="bytes, s or frac; empty for a count or a word")
    then: Any
    now: Any
    change: float | None = Field(description="now − then; null where that is no number")
    why: str


class ChangesOut(BaseModel):
    """What moved between the saved answer and today's."""

    model_config = OPEN

    engine_version: dict[str, str | None] = Field(description="then and now")
    summary: str
    moved: list[ChangeOut]
    files: list[dict[str, str]] = Field(description="name, status (added, removed, changed) and the lines that differ")


class ReplanOut(PlanOut):
    """Today's Plan for the request of a saved one; not saved."""

    replan_of: dict[str, str] = Field(description="id, name, created_at and engine_version of the saved plan")
    changes: ChangesOut


class ComparedOut(BaseModel):
    """A plan that is compared."""

    model_config = OPEN

    id: str
    name: str
    created_at: str
    engine_version: str
    verdict: Verdict
    summary: str


class RowOut(BaseModel):
    """One figure of every plan, in their order; null where a plan has none."""

    model_config = OPEN

    section: str
    key: str
    unit: str
    values: list[Any]


class CompareOut(BaseModel):
    """Plans side by side."""

    model_config = OPEN

    plans: list[ComparedOut]
    differences: list[RowOut]
    same: list[RowOut]
