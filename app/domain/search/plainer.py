"""Not sharding is an answer: where a plainer strategy than the pinned one, or no offload, fits and is faster, by which factor.

The plan that was asked for is evaluated again under at most three plainer strategies, everything else alike: batch, checkpointing,
mesh. Those whose weights and states alone exceed a GPU are not evaluated at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from app.domain.memory.peak import MemoryTotals, evaluate_totals
from app.domain.parallel.mesh import divisors
from app.domain.parallel.strategy import STRATEGIES, Strategy
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.constraints import OFFLOAD_TARGETS, Constraints
from app.domain.search.evaluate import Table, Verdicts, complexity_of, is_written, judge
from app.domain.search.mesh import Mesh
from app.domain.search.objective import SIMPLER_WITHIN_FRAC
from app.domain.search.rules import why_not_axis, why_not_degree, why_not_group, why_not_mesh, why_not_precision
from app.domain.search.scan import Found
from app.domain.search.table import changed_columns
from app.domain.search.warn.base import warning
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import share_of
from app.domain.speed.step import evaluate_speed
from app.domain.units import format_gib

_MOST = 3
_NO_OFFLOAD = "offload_optimizer none and offload_parameters none"
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
    yield _warning(found, recommended, plainer, best)


def _warning(found: Found, recommended: Candidate, plainer: _Plainer, best: int) -> PlanWarning:
    pins, settings, c = found.constraints, recommended.settings, plainer.columns
    strategy, step_s = STRATEGIES[int(c.row[best])], float(plainer.step_s[best])
    hpz, ep, mine = int(c.hpz[best]), int(c.ep[best]), recommended.time.step_s
    stays = strategy.name == settings.strategy
    offloaded = settings.offload_optimizer != "none" or settings.offload_parameters != "none"
    how = " without offload" * offloaded + f" with hpZ groups of {hpz}" * (hpz > 1)
    how += f" with expert parallelism {ep}" * (ep > settings.expert_parallel)
    needed, there = format_gib(float(plainer.totals.device[best])), format_gib(recommended.gpu.capacity_bytes)
    change = f"strategy {strategy.name}{how}" if not stays else f"shard_group_size {hpz}" if hpz > 1 else _NO_OFFLOAD
    first = next((name for name in ("offload_optimizer", "offload_parameters") if getattr(pins, name) not in (None, "none")), "strategy")
    field = "strategy" if not stays else "shard_group_size" if hpz > 1 else first
    unwritten = "" if is_written(plainer.setup, c)[best] else " No training script is written for it."
    return warning(
        "expert_parallel_is_faster" if unwritten else "hpz_is_faster" if hpz > 1 else "plainer_is_faster",
        f"{strategy.label}{how} {'fits' if plainer.verdicts.safe[best] else 'just fits'} in {needed} of {there} and is "
        f"{mine / step_s:.2f} × as fast: {_seconds(step_s)} instead of {_seconds(mine)} a step, with all else alike.",
        f"constraints.{field}",
        f"Use {change}, or leave it open.{unwritten}",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """Another plan to hold beside the one asked for."""

    strategy: Strategy
    hpz: int = 1
    ep: int = 1


def _evaluated(found: Found, chosen: int, recommended: Candidate) -> _Plainer | None:
    """The other plans that a GPU could hold and that are faster; None where there is none."""
    setup, space = found.setup, found.space
    structure, _ = space.split(np.array([chosen]))
    mesh = space.meshes[int(space.structures["mesh"][structure[0]])]
    others = [other for other in _others(found, recommended) if _legal(setup, other, mesh)][:_MOST]
    if not others:
        return None
    columns = changed_columns(space, setup, chosen, [_change(other, mesh) for other in others])
    columns = replace(columns, ep=columns.ep * np.array([other.ep for other in others]))
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


def _others(found: Found, recommended: Candidate) -> Iterator[_Other]:
    """The same without offload; groups of a node, or experts spread, where that was left out; then strategies from the nearest down."""
    settings, setup = recommended.settings, found.setup
    gpus, own = setup.pool.node.gpus_per_node, (settings.strategy, settings.framework)
    if settings.offload_optimizer != "none" or settings.offload_parameters != "none":
        yield _Other(strategy=_row(*own))
    elif own == ("zero3", "deepspeed") and settings.hpz_group_size == 1 and found.constraints.shard_group_size:
        yield _Other(strategy=_row(*own), hpz=gpus)
    degree = max((d for d in divisors(gpus) if not why_not_degree(setup, "expert_parallel", d)), default=1)
    if degree > settings.expert_parallel == 1 and not why_not_axis(setup, "expert_parallel"):
        yield _Other(strategy=_row("zero1", "deepspeed"), ep=degree)
    for name in reversed(_PLAINER.get(settings.strategy, ())):
        yield _Other(strategy=_row(*name))


def _row(name: str, framework: str) -> Strategy:
    return next(s for s in STRATEGIES if (s.name, s.framework) == (name, framework))


def _legal(setup: TrainingSetup, other: _Other, mesh: Mesh) -> bool:
    degrees = replace(mesh.degrees, expert_parallel=mesh.degrees.expert_parallel * other.ep)
    if why_not_mesh(other.strategy, degrees) or why_not_precision(setup, other.strategy, (0, 0)):
        return False
    near = other.hpz > 1 and why_not_group(other.strategy, other.hpz, mesh.ranks, degrees, setup.pool.node.gpus_per_node)
    return not near and mesh.ranks % degrees.expert_parallel == 0


def _change(other: _Other, mesh: Mesh) -> dict[str, int]:
    none = OFFLOAD_TARGETS.index("none")
    plain = {"qwz": 0, "qgz": 0, "lean": 0, "offload_optimizer": none, "offload_parameters": none}
    group = mesh.ranks if other.strategy.states == "all" else 1
    return {"row": STRATEGIES.index(other.strategy), "group": group, "hpz": other.hpz} | plain


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
    rows = np.flatnonzero(verdicts.fits)
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
