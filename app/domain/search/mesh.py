"""The mesh axes: which degrees are tried where a request leaves them open, and the batches each mesh allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from app.domain.errors import InvalidRequestError
from app.domain.parallel.mesh import Degrees, divisors
from app.domain.search.batch import batch_choices
from app.domain.search.constraints import AXES, Constraints
from app.domain.search.rules import why_not_axis, why_not_companion, why_not_degree
from app.domain.setup import TrainingSetup

_FAST_LINK_BYTES_PER_S = 100e9
"""Above any PCIe generation's ring rate and below any NVLink's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """One set of degrees with what follows from it.

    Attributes:
        degrees: of the four axes that are not data-parallel.
        free: the same with 1 where the request pins an axis: what rules of the search apply to.
        dp: data ranks; ranks: those states are sharded over.
        batches: (micro_batch, grad_accum) pairs.
    """

    degrees: Degrees
    free: Degrees
    dp: int
    ranks: int
    batches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """How much of the free axes is searched; the widest leaves nothing out.

    Attributes:
        said: what was narrowed to come here, in words.
        batches: micro-batches a mesh at most; groups: shard groups a mesh at most.
        quantised: whether ZeRO++ quantisation is tried.
        powers: pipeline and sequence degrees are powers of two only.
        most: largest pipeline, sequence or expert degree.
    """

    said: str
    batches: int = 1 << 30
    groups: int = 1 << 30
    quantised: bool = True
    powers: bool = False
    most: int = 1 << 30


def meshes_of(setup: TrainingSetup, constraints: Constraints, width: Width, rejected: Counter[str]) -> list[Mesh]:
    """Every mesh the request leaves open, plain data parallelism (or the pinned degrees) first.

    Raises:
        InvalidRequestError: no mesh makes the global batch.
    """
    world, total = setup.pool.world_size, setup.recipe.global_batch
    choices = [_degrees(setup, constraints, axis, width, rejected) for axis in AXES]
    found: list[Mesh] = []
    for numbers in product(*choices):
        free = Degrees(**{axis: 1 if getattr(constraints, axis) else n for axis, n in zip(AXES, numbers, strict=True)})
        degrees = Degrees(**dict(zip(AXES, numbers, strict=True)))
        if found and world % (degrees.model_ranks * degrees.sequence_parallel):
            continue
        dp, ranks = degrees.data_ranks(world), degrees.zero_ranks(world)
        if free.expert_parallel > 1 and ranks % free.expert_parallel:
            continue
        if total is not None and total % dp and (found or _may_split_further(total, dp, choices)):
            rejected["the global batch is no multiple of the mesh's data ranks"] += 1
            continue
        try:
            batches = tuple(thinned(list(batch_choices(setup.recipe, dp)), width.batches))
        except InvalidRequestError:
            if not found:
                raise
            rejected["the pinned batch cannot be made on the mesh"] += 1
            continue
        found.append(Mesh(degrees=degrees, free=free, dp=dp, ranks=ranks, batches=batches))
    if not found:
        # Nothing divides it: say so for plain data parallelism.
        list(batch_choices(setup.recipe, degrees_of(constraints).data_ranks(world)))
    return found


def meshes_at_most(setup: TrainingSetup, constraints: Constraints, width: Width) -> int:
    """Combinations of degrees, before it is looked at which of them make a mesh."""
    return prod(len(_degrees(setup, constraints, axis, width, Counter())) for axis in AXES)


def _may_split_further(total: int, dp: int, choices: Iterable[list[int]]) -> bool:
    """A batch smaller than its data ranks is what model parallelism is for; any other that does not divide is refused."""
    return total < dp and any(len(c) > 1 for c in choices)


def thinned(values: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """At most so many, evenly over their order, both ends kept.

    Example:
        >>> thinned([(n, 1) for n in range(9)], 3)
        [(0, 1), (4, 1), (8, 1)]
    """
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def degrees_of(constraints: Constraints) -> Degrees:
    """Mesh degrees; those left open are 1."""
    return Degrees(**{axis: getattr(constraints, axis) or 1 for axis in AXES})


def _degrees(setup: TrainingSetup, constraints: Constraints, axis: str, width: Width, rejected: Counter[str]) -> list[int]:
    """Degrees of one axis: the pinned one, 1 where a strategy is pinned (it is taken at its word), or all that may help."""
    if pinned := getattr(constraints, axis):
        return [pinned]
    if constraints.strategy is not None or setup.pool.world_size == 1:
        return [1]
    if reason := why_not_axis(setup, axis):
        rejected[reason] += 1
        return [1]
    pool = setup.pool
    fast = pool.node.intra_node.bytes_per_s >= _FAST_LINK_BYTES_PER_S
    # Tensor parallelism inside a node; stages of whole nodes, for inside one it does the same without a bubble on fast links.
    ranks = {"tensor_parallel": pool.node.gpus_per_node, "pipeline_parallel": pool.nodes if fast else pool.world_size}
    degrees = [d for d in divisors(ranks.get(axis, pool.world_size)) if not why_not_degree(setup, axis, d)]
    degrees = [d for d in degrees if not why_not_companion(setup, axis, d)]
    if axis == "tensor_parallel":
        return degrees
    return [d for d in degrees if d <= width.most and (not width.powers or d & (d - 1) == 0)]
