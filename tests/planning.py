"""Helpers for tests that ask the planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.domain.plan import Plan
from app.domain.search.evaluate import Evaluation, evaluate
from app.domain.search.planner import Question, make_plan
from app.services.request import PlanRequest
from app.services.resolve import resolve


def request_of(
    model: dict[str, Any],
    training: dict[str, Any],
    *,
    gpus: int = 8,
    nodes: int = 1,
    constraints: dict[str, Any] | None = None,
    **rest: Any,
) -> PlanRequest:
    """A request on H100 nodes with 2 TiB of host memory."""
    pool = {"gpu": "h100-sxm-80gb", "gpus_per_node": gpus, "nodes": nodes, "host_memory_gib": 2048} | rest.pop("pool", {})
    body = {"model": model, "training": training, "cluster": {"pools": [pool]}, "constraints": constraints or {}} | rest
    return PlanRequest.model_validate(body)


def question_of(*args: Any, **kwargs: Any) -> Question:
    """The question of ``request_of``'s arguments."""
    return resolve(request_of(*args, **kwargs)).question


def plan_of(*args: Any, **kwargs: Any) -> Plan:
    """The plan of ``request_of``'s arguments."""
    return make_plan(question_of(*args, **kwargs))


def evaluate_request(*args: Any, **kwargs: Any) -> Evaluation:
    """The evaluated table of ``request_of``'s arguments on its first pool."""
    question = question_of(*args, **kwargs)
    return evaluate(replace(question.setup, pool=question.pools[0]), question.constraints)


def term_bytes(plan: Plan, name: str) -> float:
    """Bytes of a GPU term at any moment, the largest."""
    values = [t.value for m in plan.recommended.gpu.moments for t in m.terms if t.name == name]
    return max(values, default=0.0)


def one_row(found: Evaluation) -> Evaluation:
    """The evaluation of the table's first candidate only: the simplest one, where settings are free."""
    first, share = np.array([0]), found.memory.share
    alone = replace(share, **{name: getattr(share, name)[first] for name in share.__slots__})
    return replace(found, columns=found.columns.take(first), memory=replace(found.memory, share=alone))
