"""Which of the candidates that fit to recommend, and which others are worth showing."""

from __future__ import annotations

import numpy as np

from app.domain.search.evaluate import Evaluation
from app.domain.setup import Array

SIMPLER_WITHIN_FRAC = 0.05
"""A simpler plan is preferred while it is at most this much slower than the fastest."""


def choose(evaluation: Evaluation, objective: str) -> int | None:
    """Index of the recommended candidate, or None when nothing fits.

    Candidates that fit with their whole interval go before those that only may. ``throughput`` takes the fastest, or the
    simplest within 5 % of it; ``simplest`` the lowest rung; ``largest_micro_batch`` the largest micro-batch. Ties go to the
    simpler, then the faster, then the one that needs less memory.
    """
    pool = evaluation.safe if evaluation.safe.any() else evaluation.fits
    rows = np.flatnonzero(pool & ~_needlessly_wide(evaluation, pool))
    if not len(rows):
        return None
    speed, complexity = evaluation.tokens_per_s[rows], evaluation.complexity[rows]
    if objective == "simplest":
        rows = rows[np.floor(complexity) == np.floor(complexity).min()]
    elif objective == "largest_micro_batch":
        micro = evaluation.columns.micro_batch[rows]
        rows = rows[micro == micro.max()]
    else:
        rows = rows[speed >= speed.max() * (1 - SIMPLER_WITHIN_FRAC)]
    order = np.lexsort((evaluation.memory.device[rows], -evaluation.tokens_per_s[rows], evaluation.complexity[rows]))
    return int(rows[order[0]])


def _needlessly_wide(evaluation: Evaluation, pool: Array) -> Array:
    """Hybrid shard groups wider than the narrowest that fits: keeping gathers inside a node is what the strategy is for."""
    c = evaluation.columns
    hybrid = c.replicas > 1
    fitting = c.group[hybrid & pool]
    return hybrid & (c.group > fitting.min()) if len(fitting) else np.zeros(len(c), dtype=bool)


def nearest(evaluation: Evaluation) -> int:
    """Index of the candidate that comes nearest to fitting, judged by the largest overrun."""
    host = np.where(np.isfinite(evaluation.host_over_bytes), np.maximum(0, evaluation.host_over_bytes), 0)
    disk = np.where(np.isfinite(evaluation.nvme_over_bytes), np.maximum(0, evaluation.nvme_over_bytes), 0)
    return int(np.argmin(np.maximum(0, evaluation.over_bytes) + host + disk + evaluation.complexity))


def pareto(evaluation: Evaluation, chosen: int, limit: int = 6) -> list[int]:
    """Candidates that nothing beats in both device memory and tokens/s, fastest first, without the chosen one."""
    rows = np.flatnonzero(evaluation.fits)
    if not len(rows):
        return []
    order = rows[np.lexsort((evaluation.complexity[rows], evaluation.memory.device[rows], -evaluation.tokens_per_s[rows]))]
    device = evaluation.memory.device[order]
    best_so_far = np.minimum.accumulate(np.concatenate(([np.inf], device[:-1])))
    front: Array = order[device < best_so_far]
    return [int(i) for i in front if i != chosen][:limit]
