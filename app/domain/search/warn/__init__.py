"""Warnings: what the frameworks will really do with a request that suggests something else."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.cluster.cluster import Pool
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.companions import companion_warnings
from app.domain.search.warn.given import cluster_warnings, model_warnings
from app.domain.search.warn.ignored import ignored_warnings
from app.domain.search.warn.loading import loading_warnings
from app.domain.search.warn.memory import memory_warnings
from app.domain.search.warn.network import network_warnings
from app.domain.search.warn.numerics import numerics_warnings
from app.domain.search.warn.optimizer import optimizer_warnings
from app.domain.search.warn.sizes import size_warnings
from app.domain.search.warn.upcasts import upcast_warnings


def warnings_of(
    evaluation: Evaluation, index: int, candidate: Candidate, constraints: Constraints, pools: Sequence[Pool]
) -> tuple[PlanWarning, ...]:
    """Everything worth saying about this answer, which is row ``index`` of the evaluation."""
    return (
        *ignored_warnings(evaluation, candidate, constraints),
        *model_warnings(evaluation),
        *cluster_warnings(evaluation, pools),
        *numerics_warnings(evaluation, candidate),
        *upcast_warnings(evaluation, candidate),
        *optimizer_warnings(evaluation, candidate),
        *loading_warnings(evaluation, candidate),
        *size_warnings(evaluation, candidate, index),
        *memory_warnings(evaluation, candidate),
        *network_warnings(evaluation, candidate),
        *companion_warnings(evaluation, candidate),
    )
