"""Not sharding is an answer: where a plainer strategy than the pinned one, or no offload, fits and is faster, by which factor.

The plan that was asked for is evaluated again under at most three plainer strategies, everything else alike: batch, checkpointing,
mesh. Those whose weights and states alone exceed a GPU are not evaluated at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.domain.memory.peak import MemoryTotals, evaluate_totals
from app.domain.parallel.strategy import STRATEGIES, Strategy
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.constraints import OFFLOAD_TARGETS, Constraints
from app.domain.search.evaluate import Table, Verdicts, complexity_of, is_written, judge
from app.domain.search.mesh import Mesh
from app.domain.search.objective import SIMPLER_WITHIN_FRAC
from app.domain.search.rules import why_not_mesh, why_not_precision
from app.domain.search.scan import Found
from app.domain.search.table import changed_columns
from app.domain.search.warn.base import warning
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import share_of
from app.domain.speed.step import evaluate_speed
from app.domain.units import format_gib

_MOST = 3
_PLAINER = {
    "zero1": (("ddp", "deepspeed"),),
    "zero2": (("ddp", "deepspeed"), ("zero1", "deepspeed")),
    "zero3": (("ddp", "deepspeed"), ("zero1", "deepspeed"), ("zero2", "deepspeed")),
    "fsdp_grad_op": (("ddp", "ddp"), ("zero1", "deepspeed")),
    "fsdp_full": (("ddp", "ddp"), ("zero1", "deepspeed"), ("fsdp_grad_op", "fsdp2")),
    "hsdp": (("ddp", "ddp"), ("zero1", "deepspeed"), ("fsdp_grad_op", "fsdp2")),
}
"""Strategies that divide less than each one, the plainest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plainer:
    """The plainer plans, an entry each."""

    setup: TrainingSetup
    columns: Columns
    totals: MemoryTotals
    verdicts: Verdicts
    step_s: Array


def plainer_warnings(found: Found, chosen: int | None, recommended: Candidate) -> Iterator[PlanWarning]:
    """A warning where strategy or offload is pinned, and a plainer plan is more than 5 % faster."""
    pins = found.constraints
    if chosen is None or not (pins.strategy or _offloads(pins)):
        return
    plainer = _evaluated(found, chosen, recommended)
    if plainer is None:
        return
    best = _best(plainer)
    if best is None:
        return
    settings, step_s = recommended.settings, float(plainer.step_s[best])
    strategy = STRATEGIES[int(plainer.columns.row[best])]
    stays = strategy.name == settings.strategy
    spared = " without offload" if settings.offload_optimizer != "none" or settings.offload_parameters != "none" else ""
    needed, there = format_gib(float(plainer.totals.device[best])), format_gib(recommended.gpu.capacity_bytes)
    fits = "fits" if plainer.verdicts.safe[best] else "just fits"
    field = next((f"constraints.{name}" for name in ("offload_optimizer", "offload_parameters") if stays and getattr(pins, name)), None)
    change = f"strategy {strategy.name}" if not stays else "offload_optimizer none and offload_parameters none"
    yield warning(
        "plainer_is_faster",
        f"{strategy.label}{spared} {fits} in {needed} of {there} and is {recommended.time.step_s / step_s:.2f} × as fast: "
        f"{_seconds(step_s)} instead of {_seconds(recommended.time.step_s)} a step, with all else alike.",
        field or "constraints.strategy",
        f"Use {change}{' without offload' if spared and not stays else ''}, or leave it open.",
    )


def needless_warnings(found: Found, chosen: int | None) -> Iterator[PlanWarning]:
    """Where the choice was free and whole parameters won: how much longer the fastest plan takes that divides them."""
    table, pins = found.table, found.constraints
    if chosen is None or pins.strategy or pins.framework or STRATEGIES[int(table.row[chosen])].parameters != "none":
        return
    best = _fastest_divided(table)
    if best is None:
        return
    factor = float(table.tokens_per_s[chosen] / table.tokens_per_s[best])
    if factor < 1 + SIMPLER_WITHIN_FRAC:
        return
    plain, divided = STRATEGIES[int(table.row[chosen])].label, STRATEGIES[int(table.row[best])].label
    yield warning(
        "sharding_not_needed",
        f"Parameters need no sharding here: {divided} would take {factor:.2f} × as long as {plain} for the same tokens.",
        "constraints.strategy",
        "Nothing to change.",
        "info",
    )


def _offloads(pins: Constraints) -> bool:
    return any(where not in (None, "none") for where in (pins.offload_optimizer, pins.offload_parameters))


def _evaluated(found: Found, chosen: int, recommended: Candidate) -> _Plainer | None:
    """The plan under each plainer strategy that could hold it and is faster; None where there is none."""
    setup, space = found.setup, found.space
    structure, _ = space.split(np.array([chosen]))
    mesh = space.meshes[int(space.structures["mesh"][structure[0]])]
    changes = [_change(strategy, mesh) for strategy in _plainer_than(recommended) if _legal(setup, strategy, mesh)][:_MOST]
    if not changes:
        return None
    columns = changed_columns(space, setup, chosen, changes)
    columns = columns.take(_may_hold(setup, columns))
    if not len(columns):
        return None
    step_s = evaluate_speed(setup, setup.numbers, columns, share_of(setup, setup.numbers, columns)).step_s
    faster = step_s * (1 + SIMPLER_WITHIN_FRAC) <= recommended.time.step_s
    if not faster.any():
        return None
    columns, step_s = columns.take(faster), step_s[faster]
    totals = evaluate_totals(setup, setup.numbers, columns)
    verdicts = judge(setup, found.constraints, columns, totals)
    return _Plainer(setup=setup, columns=columns, totals=totals, verdicts=verdicts, step_s=step_s)


def _plainer_than(recommended: Candidate) -> list[Strategy]:
    settings = recommended.settings
    own = (settings.strategy, settings.framework)
    offloaded = settings.offload_optimizer != "none" or settings.offload_parameters != "none"
    names = [own] * offloaded + [*reversed(_PLAINER.get(settings.strategy, ()))]
    return [next(s for s in STRATEGIES if (s.name, s.framework) == name) for name in names]


def _legal(setup: TrainingSetup, strategy: Strategy, mesh: Mesh) -> bool:
    return not (why_not_mesh(strategy, mesh.degrees) or why_not_precision(setup, strategy, (0, 0)))


def _change(strategy: Strategy, mesh: Mesh) -> dict[str, int]:
    none = OFFLOAD_TARGETS.index("none")
    plain = {"hpz": 1, "qwz": 0, "qgz": 0, "lean": 0, "offload_optimizer": none, "offload_parameters": none}
    return {"row": STRATEGIES.index(strategy), "group": mesh.ranks if strategy.states == "all" else 1} | plain


def _may_hold(setup: TrainingSetup, columns: Columns) -> Array:
    """Whether weights and states alone leave room on a GPU."""
    c, n = columns, setup.numbers
    states = n.trainable * (c.master_bytes + c.state_bytes) / c.state_ranks
    held = (n.frozen * c.frozen_bytes + n.trainable * c.param_bytes) / c.param_ranks + states
    room: Array = held / (c.tp * c.pp * c.ep) < setup.capacity_bytes
    return room


def _best(plainer: _Plainer) -> int | None:
    """The fastest that fits, safely where one does, and of those within 5 % of it the simplest; None where none fits."""
    verdicts = plainer.verdicts
    fits = verdicts.fits & is_written(plainer.setup, plainer.columns)
    rows = np.flatnonzero(fits)
    safe = rows[verdicts.safe[rows]]
    rows = safe if len(safe) else rows
    if not len(rows):
        return None
    near = rows[plainer.step_s[rows] <= plainer.step_s[rows].min() * (1 + SIMPLER_WITHIN_FRAC)]
    return int(near[np.argmin(complexity_of(plainer.columns)[near])])


def _fastest_divided(table: Table) -> int | None:
    divides = np.array([s.parameters != "none" for s in STRATEGIES])[table.row]
    rows = np.flatnonzero(divides & table.fits & ~table.offloaded)
    return int(rows[np.argmax(table.tokens_per_s[rows])]) if len(rows) else None


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
