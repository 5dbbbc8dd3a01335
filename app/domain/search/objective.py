"""Which of the candidates that fit to recommend, and which others are worth showing."""

from __future__ import annotations

import numpy as np

from app.domain.search.evaluate import Table
from app.domain.setup import Array

SIMPLER_WITHIN_FRAC = 0.05
"""A simpler plan is preferred while it is at most this much slower than the fastest."""


def choose(table: Table, objective: str) -> int | None:
    """Number of the recommended candidate, or None when nothing fits.

    Candidates a script is written for go before others, and those that fit with their whole interval before those that only may.
    ``throughput`` takes the fastest, or the simplest within 5 % of it; ``simplest`` the lowest rung; ``largest_micro_batch`` the
    largest micro-batch. Ties go to the simpler, then the faster, then the one that needs less memory.
    """
    rows = _not_needlessly_wide(table, np.flatnonzero(table.preferred))
    if not len(rows):
        return None
    speed, complexity = table.tokens_per_s[rows], table.complexity[rows]
    if objective == "simplest":
        rows = rows[np.floor(complexity) == np.floor(complexity).min()]
    elif objective == "largest_micro_batch":
        micro = table.micro_batch[rows]
        rows = rows[micro == micro.max()]
    else:
        rows = rows[speed >= speed.max() * (1 - SIMPLER_WITHIN_FRAC)]
    order = np.lexsort((table.device_bytes[rows], -table.tokens_per_s[rows], table.complexity[rows]))
    return int(rows[order[0]])


def _not_needlessly_wide(table: Table, rows: Array) -> Array:
    """Without hybrid shard groups wider than the narrowest that fits on their mesh: keeping gathers near is what they are for."""
    hybrid = table.replicas[rows] > 1
    if not hybrid.any():
        return rows
    some = rows[hybrid]
    _, mesh = np.unique(np.stack([table.tp, table.pp, table.sp, table.ep])[:, some], axis=1, return_inverse=True)
    narrowest = np.full(mesh.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(narrowest, mesh, table.group[some])
    kept = np.ones(len(rows), dtype=bool)
    kept[hybrid] = table.group[some] == narrowest[mesh]
    return rows[kept]


def nearest(table: Table) -> int:
    """Number of the candidate that comes nearest to fitting, judged by the largest overrun; those with a script first."""
    host = np.where(np.isfinite(table.host_over_bytes), np.maximum(0, table.host_over_bytes), 0)
    disk = np.where(np.isfinite(table.nvme_over_bytes), np.maximum(0, table.nvme_over_bytes), 0)
    over = np.maximum(0, table.over_bytes) + host + disk + table.complexity
    return int(np.argmin(np.where(table.written, over, np.inf) if table.written.any() else over))


def pareto(table: Table, chosen: int, limit: int = 6) -> list[int]:
    """Candidates that nothing beats in both device memory and tokens/s, fastest first, without the chosen one.

    Those without a script are left out beside a chosen one that has one.
    """
    rows = np.flatnonzero(table.fits & table.written if table.written[chosen] else table.fits)
    front: list[int] = []
    while len(rows) and len(front) <= limit:
        speed = table.tokens_per_s[rows]
        fastest = rows[speed == speed.max()]
        front.append(int(fastest[np.lexsort((table.complexity[fastest], table.device_bytes[fastest]))[0]]))
        rows = rows[table.device_bytes[rows] < table.device_bytes[front[-1]]]
    return [i for i in front if i != chosen][:limit]
