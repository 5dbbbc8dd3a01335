"""Columns of candidates: structures of a space with batches, in whatever shapes they are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from app.domain.companions import strategy_dtypes
from app.domain.parallel.strategy import STRATEGIES, Strategy, shared_by
from app.domain.recipe.precision import FRAMEWORKS
from app.domain.search.space import FIELDS, Space
from app.domain.setup import Array, Columns, Numbers, TrainingSetup

# Elements. A bucket holds one block's gradients, or all of an adapter's, within bounds that keep messages long and the buffer small.
_BUCKET_BOUNDS, _LEAN_BUCKET = (10_000_000, 200_000_000), 20_000_000
_PREFETCH, _LEAN_PREFETCH = 50_000_000, 10_000_000
_REUSE, _SUB_GROUP = 1_000_000_000, 100_000_000


def candidate_columns(space: Space, setup: TrainingSetup, numbers: Numbers, candidates: Array) -> Columns:
    """These candidates, an entry each."""
    structure, batch = space.split(candidates)
    mesh = space.structures["mesh"][structure]
    chosen = {name: space.structures[name][structure] for name in FIELDS}
    return _columns(space, setup, numbers, chosen, (space.micro_batch[mesh, batch], space.grad_accum[mesh, batch]))


def changed_columns(space: Space, setup: TrainingSetup, candidate: int, changes: Sequence[dict[str, int]]) -> Columns:
    """One candidate with other values of ``FIELDS``, an entry a set of changes."""
    structure, batch = space.split(np.array([candidate]))
    own = {name: int(space.structures[name][structure[0]]) for name in FIELDS}
    rows = [own | change for change in changes]
    chosen = {name: np.array([row[name] for row in rows], dtype=np.int64) for name in FIELDS}
    mesh, number = chosen["mesh"], batch[0]
    return _columns(space, setup, setup.numbers, chosen, (space.micro_batch[mesh, number], space.grad_accum[mesh, number]))


def grid_columns(space: Space, setup: TrainingSetup, numbers: Numbers, structures: Array) -> Columns:
    """These structures as (S, 1) columns beside their batches as (S, B), short rows repeating their last batch.

    Numbers are floats here: the same values, without a conversion in every product. Codes stay integers.
    """
    mesh, most = space.structures["mesh"][structures], int(space.batches[structures].max())
    chosen = {name: space.structures[name][structures][:, np.newaxis] for name in FIELDS}
    batch = space.micro_batch[mesh, :most], space.grad_accum[mesh, :most]
    columns = _columns(space, setup, numbers, chosen, batch)
    return replace(columns, **{name: getattr(columns, name).astype(np.float64) for name in _NUMBERS})


_NUMBERS = (
    "world_size", "tp", "pp", "sp", "ep", "dp", "zero_ranks", "group", "replicas", "hpz", "param_ranks", "grad_ranks", "state_ranks",
    "gathers", "micro_batch", "grad_accum", "bucket", "prefetch", "reuse", "sub_group", "persistence",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What structures are compared and sorted by, an entry a structure: columns of the same names."""

    mesh: Array
    row: Array
    tp: Array
    pp: Array
    sp: Array
    ep: Array
    group: Array
    replicas: Array
    hpz: Array
    qwz: Array
    qgz: Array
    checkpointing: Array
    act_offload: Array
    offload_optimizer: Array
    offload_parameters: Array
    lean: Array


def outline_of(space: Space) -> Outline:
    """The outline of every structure."""
    tp, pp, sp, ep, _, ranks = np.moveaxis(_mesh_numbers(space)[space.structures["mesh"]], -1, 0)
    replicas = _replicas(space.structures["row"], space.structures["group"], ranks)
    return Outline(tp=tp, pp=pp, sp=sp, ep=ep, replicas=replicas, **space.structures)


def _mesh_numbers(space: Space) -> Array:
    """Degrees, data ranks and ranks that states are sharded over, a row a mesh."""
    degrees = [(m.degrees, m.dp, m.ranks) for m in space.meshes]
    rows = [(d.tensor_parallel, d.pipeline_parallel, d.sequence_parallel, d.expert_parallel, dp, ranks) for d, dp, ranks in degrees]
    return np.array(rows, dtype=np.int64)


def _replicas(row: Array, group: Array, ranks: Array) -> Array:
    """Shard groups of hybrid strategies; 1 of others."""
    replicas: Array = np.where(_per_row("in_groups", row), ranks // np.maximum(1, group), 1)
    return replicas


def _columns(space: Space, setup: TrainingSetup, numbers: Numbers, s: Mapping[str, Array], batch: tuple[Array, Array]) -> Columns:
    row, mesh = s["row"], s["mesh"]
    world, ones = setup.pool.world_size, np.ones_like(row)
    tp, pp, sp, ep, dp, ranks = np.moveaxis(_mesh_numbers(space)[mesh], -1, 0)
    carried = {n: s[n] for n in ("hpz", "qwz", "qgz", "checkpointing", "act_offload", "offload_optimizer", "offload_parameters")}
    return Columns(
        row=row, world_size=ones * world, tp=tp, pp=pp, sp=sp, ep=ep, dp=dp, micro_batch=batch[0], grad_accum=batch[1],
        **carried, kept_frac=ones * 0.0,
        **_strategy_columns(row, s["group"], ranks),
        **_size_columns(setup, numbers, s["lean"], _per_row("flat_stages", row)),
        **_dtypes(setup, row),
    )  # fmt: skip


@cache
def _of_strategies() -> dict[str, Array]:
    """What the strategy table says, as arrays to be indexed by a candidate's strategy."""

    def column(value: Callable[[Strategy], Any]) -> Array:
        return np.array([value(s) for s in STRATEGIES])

    return {
        "gathers": column(lambda s: s.gathers),
        "keeps_gathered": column(lambda s: int(s.keeps_gathered)),
        "all_reduce": column(lambda s: int(s.reduce_op == "all_reduce")),
        "reduces_each": column(lambda s: int(s.reduces_each_micro_step)),
        "gathers_after": column(lambda s: int(s.gathers_after_step)),
        "in_groups": column(lambda s: s.states == "group"),
        "flat_stages": column(lambda s: s.framework == "deepspeed" and s.gathers == 0),
        # 0 stands for the group and 1 for all ranks until each candidate's own numbers are put in.
        **{scope: np.array([shared_by(getattr(s, scope), 3, 2) for s in STRATEGIES]) for scope in ("parameters", "gradients", "states")},
        **{name: np.array([int(s.framework == name) for s in STRATEGIES]) for name in FRAMEWORKS},
    }


def _per_row(name: str, row: Array) -> Array:
    """A property of the strategy table spread over the candidates."""
    return _of_strategies()[name][row]


def _dtypes(setup: TrainingSetup, row: Array) -> dict[str, Array]:
    """Bytes of one element under each strategy's framework, spread over the candidates."""
    return {name: column[row] for name, column in strategy_dtypes(setup).items()}


def _strategy_columns(row: Array, group: Array, ranks: Array) -> dict[str, Array]:
    """The numbers of the strategy table for each candidate."""

    def shared(scope: str) -> Array:
        kind = _per_row(scope, row)
        return np.where(kind == 2, group, np.where(kind == 3, ranks, 1))

    param_ranks = shared("parameters")
    return {
        "zero_ranks": ranks,
        "group": group,
        "replicas": _replicas(row, group, ranks),
        "param_ranks": param_ranks,
        "grad_ranks": shared("gradients"),
        "state_ranks": shared("states"),
        "gathers": _per_row("gathers", row) * (param_ranks > 1),
    } | {name: _per_row(name, row) for name in ("keeps_gathered", "all_reduce", "reduces_each", "gathers_after", *FRAMEWORKS)}


def _size_columns(setup: TrainingSetup, numbers: Numbers, lean: Array, flat_stages: Array) -> dict[str, Array]:
    """DeepSpeed's sizes in elements: roomy ones follow the model, lean ones keep buffers small and gather nothing ahead."""
    roomy = lean == 0
    bucket = int(np.clip(min(numbers.block, numbers.trainable), *_BUCKET_BOUNDS))
    hidden = setup.model.hidden_size
    return {
        "lean": lean,
        "bucket": np.where(roomy, bucket, min(bucket, _LEAN_BUCKET)),
        "prefetch": np.where(roomy, min(_PREFETCH, numbers.block), min(_LEAN_PREFETCH, numbers.block)),
        "reuse": np.where(roomy, _REUSE, 0),
        "sub_group": np.full_like(lean, _SUB_GROUP),
        "persistence": np.where(roomy, 10 * hidden, hidden),
        # A second bucket is what overlap costs at stages 1 and 2; stage 3 overlaps without one.
        "overlap_comm": np.where(flat_stages & ~roomy, 0, 1),
    }
