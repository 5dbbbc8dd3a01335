"""The candidate table: every legal combination of the free axes, and a count of what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from app.domain.errors import InvalidRequestError
from app.domain.parallel.mesh import Degrees, divisors
from app.domain.parallel.strategy import STRATEGIES, Strategy, find_strategies, shared_by
from app.domain.recipe.precision import FRAMEWORKS, stored_dtypes
from app.domain.recipe.recipe import CHECKPOINTING_NAMES
from app.domain.search.batch import batch_choices
from app.domain.search.constraints import OFFLOAD_TARGETS, Constraints
from app.domain.setup import Array, Columns, Numbers, TrainingSetup, dtype_columns

_FREE_OFFLOAD = ((0, 0), (1, 0), (1, 1), (2, 0), (2, 2))

# Elements. A bucket holds one block's gradients, within bounds that keep messages long and the buffer small.
_BUCKET_BOUNDS, _LEAN_BUCKET = (10_000_000, 200_000_000), 20_000_000
_PREFETCH, _LEAN_PREFETCH = 50_000_000, 10_000_000
_REUSE, _SUB_GROUP = 1_000_000_000, 100_000_000


@dataclass(slots=True)
class Space:
    """A built table with the combinations that rules left out, counted by reason."""

    columns: Columns
    rejected: Counter[str] = field(default_factory=Counter)


def build_space(setup: TrainingSetup, numbers: Numbers, constraints: Constraints) -> Space:
    """Every legal candidate under the constraints.

    Raises:
        InvalidRequestError: the pinned degrees do not divide the devices, or no strategy allows the pins together.
    """
    strategies = find_strategies(constraints.framework, constraints.strategy)
    if not strategies:
        raise _no_such_pair(constraints)
    degrees = degrees_of(constraints)
    check_degrees(setup, degrees)
    rejected: Counter[str] = Counter()
    combos = [combo for s in strategies for combo in _combinations(setup, constraints, degrees, s, rejected)]
    if not combos:
        raise _nothing_legal(constraints, rejected)
    return Space(columns=_columns(setup, numbers, degrees, np.array(combos, dtype=np.int64)), rejected=rejected)


def degrees_of(constraints: Constraints) -> Degrees:
    """Mesh degrees; those left open are 1."""
    return Degrees(
        tensor_parallel=constraints.tensor_parallel or 1, pipeline_parallel=constraints.pipeline_parallel or 1,
        sequence_parallel=constraints.sequence_parallel or 1, expert_parallel=constraints.expert_parallel or 1,
    )  # fmt: skip


def check_degrees(setup: TrainingSetup, degrees: Degrees) -> None:
    """Refuse degrees that the model or the devices cannot be divided by."""
    degrees.data_ranks(setup.pool.world_size)
    attention, layers = setup.model.main_block.attention, setup.model.num_layers
    heads = attention.num_heads if attention else setup.model.hidden_size
    for name in ("tensor_parallel", "sequence_parallel"):
        degree = getattr(degrees, name)
        if heads % degree:
            fits = ", ".join(str(d) for d in divisors(heads) if d <= setup.pool.world_size)
            raise InvalidRequestError.at("constraints", name, msg=f"{name} {degree} does not divide num_heads {heads}", hint=f"use {fits}")
    if degrees.pipeline_parallel > layers:
        raise InvalidRequestError.at(
            "constraints",
            "pipeline_parallel",
            msg=f"pipeline_parallel {degrees.pipeline_parallel} exceeds the {layers} layers",
            hint=f"use at most {layers}",
        )
    experts = setup.model.main_block.moe.num_experts if setup.model.main_block.moe else 1
    if experts % degrees.expert_parallel:
        raise InvalidRequestError.at(
            "constraints", "expert_parallel", msg=f"expert_parallel {degrees.expert_parallel} does not divide num_experts {experts}",
            hint=f"use {', '.join(map(str, divisors(experts)))}",
        )  # fmt: skip


def _combinations(
    setup: TrainingSetup, constraints: Constraints, degrees: Degrees, strategy: Strategy, rejected: Counter[str]
) -> Iterator[tuple[int, ...]]:
    """Tuples (row, group, hpz, checkpointing, act_offload, offload_optimizer, offload_parameters, lean, micro_batch, grad_accum)."""
    ranks = degrees.zero_ranks(setup.pool.world_size)
    row = STRATEGIES.index(strategy)
    recomputes = _recompute_choices(setup)
    leans = (0, 1) if strategy.framework == "deepspeed" and ranks > 1 else (0,)
    batches = list(batch_choices(setup.recipe, degrees.data_ranks(setup.pool.world_size)))
    for group, hpz in _groups(setup, constraints, degrees, strategy, rejected):
        for offload in _offloads(constraints, strategy, rejected):
            if reason := _why_not_precision(setup, strategy, offload):
                rejected[reason] += len(recomputes) * len(leans) * len(batches)
                continue
            if ranks == 1 and strategy.states != "none" and offload == (0, 0) and constraints.strategy is None:
                rejected["sharding over one rank divides nothing"] += len(recomputes) * len(leans) * len(batches)
                continue
            for (checkpointing, kept_on_host), lean, (micro, accum) in product(recomputes, leans, batches):
                yield (row, group, hpz, checkpointing, kept_on_host, *offload, lean, micro, accum)


def _recompute_choices(setup: TrainingSetup) -> list[tuple[int, int]]:
    """Checkpointing policies with activation offload; only fully checkpointed inputs are worth sending to the host."""
    recipe = setup.recipe
    policies = [CHECKPOINTING_NAMES.index(recipe.activation_checkpointing)] if recipe.activation_checkpointing else [0, 1, 2]
    if recipe.activation_offload is not None:
        return [(p, int(recipe.activation_offload)) for p in policies]
    return [(p, 0) for p in policies] + [(2, 1)] * (2 in policies)


def _groups(
    setup: TrainingSetup, constraints: Constraints, degrees: Degrees, strategy: Strategy, rejected: Counter[str]
) -> Iterator[tuple[int, int]]:
    """(shard group, hpZ group) choices of one strategy."""
    ranks = degrees.zero_ranks(setup.pool.world_size)
    local = max(1, setup.pool.node.gpus_per_node // degrees.tensor_parallel)
    pinned = constraints.shard_group_size
    if strategy.states == "group":
        # Groups of whole nodes; a group inside one node is worth it only where it is asked for.
        choices = [pinned] if pinned else [d for d in divisors(ranks) if 1 < d < ranks and d % local == 0]
        if constraints.strategy == "hsdp" and not choices:
            choices = [ranks]
        legal = [d for d in choices if d <= ranks and ranks % d == 0]
        if not legal:
            rejected[f"no shard group size between 1 and the {ranks} ranks divides them"] += 1
        yield from ((d, 1) for d in legal)
    elif strategy.name == "zero3":
        hpz = [pinned] if pinned else ([1, local] if ranks > local > 1 else [1])
        yield from ((ranks, d) for d in hpz if ranks % d == 0)
    elif pinned in (None, ranks, 1 if strategy.states == "none" else ranks):
        yield (ranks if strategy.states != "none" else 1, 1)
    else:
        rejected[f"{strategy.label} has no shard group of {pinned}: only HSDP and ZeRO++ hpZ divide ranks into groups"] += 1


def _offloads(constraints: Constraints, strategy: Strategy, rejected: Counter[str]) -> Iterator[tuple[int, int]]:
    """(optimizer, parameter) offload pairs that the framework really honours."""
    optimizer, parameters = (_code(constraints.offload_optimizer), _code(constraints.offload_parameters))
    if strategy.framework == "deepspeed" and strategy.parameters == "none":
        # DeepSpeed parses these settings below stage 3 and ignores them: parameters stay, NVMe becomes the CPU (warned about).
        parameters = 0
        optimizer = min(optimizer, 1) if optimizer is not None else None
    if strategy.framework == "fsdp2" and None in (optimizer, parameters):
        optimizer = parameters = max(optimizer or 0, parameters or 0) if (optimizer, parameters) != (None, None) else None
    found = False
    for pair in _FREE_OFFLOAD:
        if optimizer not in (None, pair[0]) or parameters not in (None, pair[1]):
            continue
        reason = _why_not_offload(strategy, pair)
        if reason:
            rejected[reason] += 1
            continue
        found = True
        yield pair
    if not found:
        rejected[f"{strategy.label} cannot offload the way it is pinned"] += 1


def _why_not_offload(strategy: Strategy, pair: tuple[int, int]) -> str:
    if pair == (0, 0):
        return ""
    if strategy.states == "none":
        return f"{strategy.label} has no offload"
    if strategy.framework == "fsdp2":
        return "" if pair == (1, 1) else "FSDP2 offloads parameters, gradients and optimizer together, to host memory only"
    if strategy.parameters == "none":
        return "" if pair == (1, 0) else "DeepSpeed offloads parameters, or anything to NVMe, only at stage 3"
    return ""


def _why_not_precision(setup: TrainingSetup, strategy: Strategy, offload: tuple[int, int]) -> str:
    """Pure low precision that DeepSpeed does not offer in every combination."""
    recipe = setup.recipe
    if strategy.framework != "deepspeed" or recipe.master_weights or recipe.precision == "fp32":
        return ""
    if strategy.states == "none":
        return "DeepSpeed stage 0 keeps a fp32 master copy whatever is asked"
    if recipe.precision == "fp16" and (offload[0] != 1 or recipe.optimizer != "adamw"):
        return "DeepSpeed trains fp16 without a fp32 master only with AdamW offloaded to the CPU"
    return ""


def _code(name: str | None) -> int | None:
    return None if name is None else OFFLOAD_TARGETS.index(name)


def _nothing_legal(constraints: Constraints, rejected: Counter[str]) -> InvalidRequestError:
    """Everything was ruled out: the pins, and the rules that left nothing."""
    pinned = {name: value for name in constraints.__slots__ if (value := getattr(constraints, name)) is not None}
    order = ("shard_group_size", "offload_parameters", "offload_optimizer", "strategy", "framework")
    field = next((name for name in order if name in pinned), "strategy")
    text = ", ".join(f"{name} {value}" for name, value in pinned.items())
    return InvalidRequestError.at(
        "constraints", field, msg=f"no framework can do all of this together: {text}", hint="; ".join(rejected) or "leave one of them open"
    )


def _no_such_pair(constraints: Constraints) -> InvalidRequestError:
    names = sorted({s.name for s in find_strategies(constraints.framework, None)})
    return InvalidRequestError.at(
        "constraints",
        "strategy",
        msg=f"{constraints.framework} has no strategy {constraints.strategy}",
        hint=f"{constraints.framework} offers {', '.join(names)}",
    )


def _columns(setup: TrainingSetup, numbers: Numbers, degrees: Degrees, combos: Array) -> Columns:
    row, group, hpz, checkpointing, kept_on_host, optimizer, parameters, lean, micro, accum = combos.T
    world, full = setup.pool.world_size, np.ones(len(row), dtype=np.int64)
    framework = _per_row(row, lambda s: s.framework)
    dtypes = {f: stored_dtypes(f, setup.recipe) for f in FRAMEWORKS}
    return Columns(
        row=row,
        world_size=full * world,
        tp=full * degrees.tensor_parallel,
        pp=full * degrees.pipeline_parallel,
        sp=full * degrees.sequence_parallel,
        ep=full * degrees.expert_parallel,
        dp=full * degrees.data_ranks(world),
        hpz=hpz,
        qwz=full * 0,
        qgz=full * 0,
        micro_batch=micro,
        grad_accum=accum,
        checkpointing=checkpointing,
        act_offload=kept_on_host,
        offload_optimizer=optimizer,
        offload_parameters=parameters,
        **_strategy_columns(row, group, degrees.zero_ranks(world)),
        **_size_columns(setup, numbers, lean, _per_row(row, lambda s: s.framework == "deepspeed" and s.gathers == 0)),
        **dtype_columns(dtypes, framework, numbers, setup.recipe),
    )


def _per_row(row: Array, value: Callable[[Strategy], object]) -> Array:
    """A property of the strategy table spread over the candidates."""
    column: Array = np.array([value(s) for s in STRATEGIES])[row]
    return column


def _strategy_columns(row: Array, group: Array, ranks: int) -> dict[str, Array]:
    """The numbers of the strategy table for each candidate."""

    def shared(scope: str) -> Array:
        whole = _per_row(row, lambda s: shared_by(getattr(s, scope), ranks, 1))
        return np.where(_per_row(row, lambda s: getattr(s, scope) == "group"), group, whole)

    hybrid = _per_row(row, lambda s: s.states == "group")
    return {
        "zero_ranks": np.full(len(row), ranks),
        "group": group,
        "replicas": np.where(hybrid, ranks // np.maximum(1, group), 1),
        "param_ranks": shared("parameters"),
        "grad_ranks": shared("gradients"),
        "state_ranks": shared("states"),
        "gathers": _per_row(row, lambda s: s.gathers) * (shared("parameters") > 1),
        "keeps_gathered": _per_row(row, lambda s: int(s.keeps_gathered)),
        "all_reduce": _per_row(row, lambda s: int(s.reduce_op == "all_reduce")),
        "reduces_each": _per_row(row, lambda s: int(s.reduces_each_micro_step)),
        "gathers_after": _per_row(row, lambda s: int(s.gathers_after_step)),
    } | {name: (_per_row(row, lambda s: s.framework) == name) * 1 for name in FRAMEWORKS}


def _size_columns(setup: TrainingSetup, numbers: Numbers, lean: Array, flat_stages: Array) -> dict[str, Array]:
    """DeepSpeed's sizes in elements: roomy ones follow the model, lean ones keep buffers small and gather nothing ahead."""
    roomy = lean == 0
    bucket = int(np.clip(numbers.block, *_BUCKET_BOUNDS))
    hidden = setup.model.hidden_size
    return {
        "lean": lean,
        "bucket": np.where(roomy, bucket, min(bucket, _LEAN_BUCKET)),
        "prefetch": np.where(roomy, min(_PREFETCH, numbers.block), min(_LEAN_PREFETCH, numbers.block)),
        "reuse": np.where(roomy, _REUSE, 0),
        "sub_group": np.full(len(lean), _SUB_GROUP),
        "persistence": np.where(roomy, 10 * hidden, hidden),
        # A second bucket is what overlap costs at stages 1 and 2; stage 3 overlaps without one.
        "overlap_comm": np.where(flat_stages & ~roomy, 0, 1),
    }
