"""Evaluate a candidate table: memory for all, time for all, and which of them fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from app.domain.memory.peak import Memory, evaluate_memory
from app.domain.memory.sureness import peak_ratios, safe_bytes
from app.domain.parallel.strategy import STRATEGIES
from app.domain.search.constraints import Constraints
from app.domain.search.space import build_space
from app.domain.setup import Array, Columns, Numbers, TrainingSetup, numbers_of
from app.domain.speed.step import Speed, evaluate_speed

HOST_SAFE_FRAC = 0.9
"""Share of a node's memory up to which a plan is called safe: processes, page cache and data workers take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One table with everything it costs.

    Attributes:
        fits: device, host and disk stay within capacity.
        safe: they do so with a probability of at least 80 %, and nothing makes the allocator give cached blocks back.
        over_bytes: bytes it cannot do without above the usable capacity (negative where there is room).
        tokens_per_s: of the whole job.
        complexity: order of preference between plans that are equally fast, lower is simpler.
    """

    setup: TrainingSetup
    numbers: Numbers
    columns: Columns
    memory: Memory
    speed: Speed
    fits: Array
    safe: Array
    over_bytes: Array
    host_over_bytes: Array
    nvme_over_bytes: Array
    tokens_per_s: Array
    complexity: Array
    rejected: dict[str, int]


def evaluate(setup: TrainingSetup, constraints: Constraints) -> Evaluation:
    """Build the space for one pool and evaluate it.

    Raises:
        InvalidRequestError: the pins contradict each other, the model or the devices.
    """
    numbers = numbers_of(setup.model, setup.recipe)
    space = build_space(setup, numbers, constraints)
    columns = space.columns
    memory = evaluate_memory(setup, numbers, columns)
    speed = evaluate_speed(setup, numbers, columns, memory.share)
    node, capacity = setup.pool.node, setup.capacity_bytes
    over = memory.needed - capacity
    # Memory that is only assumed makes a plan doubtful, never impossible.
    host_over = memory.host_bytes - (np.inf if node.host_memory_assumed else host_capacity_bytes(setup) or np.inf)
    nvme_over = memory.nvme_bytes - _disk(setup, columns, pinned="nvme" in (constraints.offload_optimizer, constraints.offload_parameters))
    fits = (over <= 0) & (host_over <= 0) & (nvme_over <= 0)
    _, high = peak_ratios(setup, columns)
    safe = fits & (memory.roomy <= capacity) & (safe_bytes(memory.needed, high) <= node.gpu.memory_bytes)
    safe &= memory.host_bytes <= HOST_SAFE_FRAC * (node.host_memory_bytes or np.inf)
    # A host that is not known cannot be said to hold what is offloaded to it.
    if node.host_memory_bytes is None:
        safe &= (columns.offload_optimizer == 0) & (columns.offload_parameters == 0) & (columns.act_offload == 0)
    rejected = dict(space.rejected) | _capacity_rejections(over, host_over, nvme_over)
    return Evaluation(
        setup=setup, numbers=numbers, columns=columns, memory=memory, speed=speed, fits=fits, safe=safe, over_bytes=over,
        host_over_bytes=host_over, nvme_over_bytes=nvme_over, tokens_per_s=speed.tokens_per_step / speed.step_s,
        complexity=_complexity(columns), rejected=rejected,
    )  # fmt: skip


def host_capacity_bytes(setup: TrainingSetup) -> int | None:
    """Memory of one node a plan may use, the headroom kept free as on the GPU; None where it is not known."""
    there = setup.pool.node.host_memory_bytes
    return None if there is None else int(there * (1 - setup.headroom_frac))


def with_recipe(setup: TrainingSetup, **changes: object) -> TrainingSetup:
    """The same setup under a changed recipe."""
    return replace(setup, recipe=replace(setup.recipe, **changes))  # type: ignore[arg-type]


def _disk(setup: TrainingSetup, columns: Columns, *, pinned: bool) -> Array:
    """Disk space a candidate may use: unknown space counts as enough where NVMe is pinned, never otherwise."""
    space = setup.pool.node.nvme_bytes
    uses = (columns.offload_optimizer == 2) | (columns.offload_parameters == 2)
    unknown = np.inf if pinned else 0.0
    return np.where(uses, unknown if space is None else float(space), np.inf)


def _capacity_rejections(over: Array, host_over: Array, nvme_over: Array) -> dict[str, int]:
    counts = {
        "needs more GPU memory than there is": int((over > 0).sum()),
        "fits the GPU but needs more host memory than the node has": int(((over <= 0) & (host_over > 0)).sum()),
        "fits GPU and host but needs more disk than the node has": int(((over <= 0) & (host_over <= 0) & (nvme_over > 0)).sum()),
    }
    return {reason: count for reason, count in counts.items() if count}


def _complexity(columns: Columns) -> Array:
    """Simpler first: the strategy's own order, then each extra moving part. Documented in docs/adr/0002."""
    base = np.array([s.complexity for s in STRATEGIES])[columns.row]
    offload = (columns.offload_optimizer > 0) * 10 + (columns.offload_parameters > 0) * 10 + (columns.offload_optimizer == 2) * 20
    extras = (
        (columns.act_offload > 0) * 5 + (columns.hpz > 1) * 2 + (columns.checkpointing == 1) * 0.5 + (columns.checkpointing == 2) * 0.25
    )
    total: Array = base + offload + extras + columns.lean * 0.1
    return total
