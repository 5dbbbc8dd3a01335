"""What is said about the search itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from app.domain.cluster.cluster import MOST_SETS, Pool, leaves_sets_out
from app.domain.plan import PlanWarning
from app.domain.search.objective import SIMPLER_WITHIN_FRAC
from app.domain.search.scan import Found
from app.domain.search.space import MAX_CANDIDATES
from app.domain.search.warn.base import warning


def search_warnings(found: Found, chosen: int | None, narrowed: Sequence[str]) -> tuple[PlanWarning, ...]:
    """What was not searched, and what was searched but passed over for want of a script."""
    return (*_narrowed(narrowed), *_unwritten(found, chosen))


def _narrowed(narrowed: Sequence[str]) -> Iterator[PlanWarning]:
    if narrowed:
        yield warning(
            "search_narrowed",
            f"More than {MAX_CANDIDATES:,} combinations were open, so not all were tried. Searched were: {'; '.join(narrowed)}.",
            "constraints",
            "Pin a strategy, a degree of parallelism or the micro-batch to search the rest in full.",
        )


def sets_left_out(pools: Sequence[Pool]) -> Iterator[PlanWarning]:
    """Pools that make more sets than are tried."""
    if leaves_sets_out(pools):
        yield warning(
            "search_narrowed",
            f"The {len(pools)} pools make more than {MOST_SETS} different sets, so not all were tried. Searched were: each pool alone, and "
            "of those with equally many GPUs a node the fastest two, three and so on, up to all together.",
            "cluster.pools",
            "Give only the pools that the job may use.",
        )


def stopped_early(undone: Sequence[str]) -> Iterator[PlanWarning]:
    """A question that cost more than one may."""
    if undone:
        yield warning(
            "search_stopped",
            f"The search was stopped before its end, and this is the best that it had found: {'; '.join(undone)}.",
            "constraints",
            "Pin a strategy, a degree of parallelism or the micro-batch, or ask for the objective throughput, which needs less.",
        )


def _unwritten(found: Found, chosen: int | None) -> Iterator[PlanWarning]:
    """A faster plan that only the user's own trainer could run."""
    table = found.table
    if chosen is None or not table.written[chosen]:
        return
    others = np.flatnonzero(table.safe & ~table.written)
    if not len(others):
        return
    best = int(others[np.argmax(table.tokens_per_s[others])])
    gain = float(table.tokens_per_s[best] / table.tokens_per_s[chosen]) - 1
    if gain > SIMPLER_WITHIN_FRAC:
        degrees = (("pipeline_parallel", table.pp), ("sequence_parallel", table.sp), ("expert_parallel", table.ep))
        used = [(axis, int(column[best])) for axis, column in degrees if column[best] > 1]
        used = used or [("tensor_parallel", int(table.tp[best]))]
        yield warning(
            "faster_without_script",
            f"With {' and '.join(f'{axis} {degree}' for axis, degree in used)} the job would be {100 * gain:.0f} % faster, but no training "
            "script that fits is written for it here.",
            f"constraints.{used[0][0]}",
            f"Pin {used[0][0]} to {used[0][1]} for its configuration files, and run them with a trainer written for it.",
            severity="info",
        )
