"""Use case: two to four saved plans side by side, what differs first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.domain.errors import InvalidRequestError
from app.services.diff import Row, rows
from app.services.saved_plans import SavedPlan, SavedPlans

FEWEST, MOST = 2, 4


def compare(saved: SavedPlans, ids: Sequence[str]) -> dict[str, Any]:
    """The plans in the order asked for, their differing figures, and those that are the same.

    Raises:
        InvalidRequestError: fewer than two plans, more than four, or one of them twice.
        NotFoundError: there is no such plan.
    """
    if len(set(ids)) != len(ids):
        raise InvalidRequestError.at("ids", msg="one plan is named twice", hint="name each plan once")
    named = "1 plan is" if len(ids) == 1 else f"{len(ids)} plans are"
    if not FEWEST <= len(ids) <= MOST:
        raise InvalidRequestError.at(
            "ids", msg=f"{named} named; {FEWEST} to {MOST} can be compared", hint="give ids=a,b with the ids of saved plans"
        )
    plans = [saved.get(plan_id) for plan_id in ids]
    found = rows([plan.answer for plan in plans])
    return {
        "plans": [_about(plan) for plan in plans],
        "differences": [_row(row) for row in found if row.differs],
        "same": [_row(row) for row in found if not row.differs],
    }


def _about(plan: SavedPlan) -> dict[str, Any]:
    return {
        "id": plan.id, "name": plan.name, "created_at": plan.created_at.isoformat(), "engine_version": plan.engine_version,
        "model_name": plan.model_name, "gpu_name": plan.gpu_name, "verdict": plan.verdict,
        "summary": plan.answer.get("summary", ""), "links": {"self": f"/plans/{plan.id}"},
    }  # fmt: skip


def _row(row: Row) -> dict[str, Any]:
    return {"section": row.section, "key": row.key, "unit": row.unit, "values": list(row.values)}
