"""Use case: one variable of a recommended plan moved, everything else pinned: memory and speed along it, and where it stops fitting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, Literal

from app.domain.cluster.cluster import Pool, pool_choices
from app.domain.errors import InvalidRequestError
from app.domain.parallel.mesh import divisors
from app.domain.plan import Candidate
from app.domain.search.budget import Budget
from app.domain.search.evaluate import with_best_sizes
from app.domain.search.objective import choose, nearest
from app.domain.search.planner import best_of, try_pools
from app.domain.search.results import candidate_at
from app.domain.search.scan import search
from app.domain.search.stretch import largest
from app.ingest.hub import Hub
from app.services.effort import EFFORT
from app.services.request import MAX_TOKENS, PlanRequest
from app.services.resolve import Resolved, local_model, resolve

Variable = Literal["sequence", "micro-batch", "gpus"]
VARIABLES: tuple[Variable, ...] = ("sequence", "micro-batch", "gpus")
SEQUENCE_STEP = 256
"""Lengths are tried in multiples of this."""
_SEQUENCE_REACH, _SEQUENCE_POINTS = 16, 20
_LARGEST_MICRO_BATCH = 64
_MORE_NODES = 4
_STEPS = (1, 2, 3, 4, 6, 8, 12)
"""Of each power of sixteen, the micro-batches and numbers of nodes that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The plan at one value of the variable.

    Attributes:
        value: tokens of a sequence, sequences of a micro-batch, or GPUs.
        device_bytes: of one GPU at its peak.
        over_bytes: what it lacks on the GPU, 0 where that has room.
        tokens_per_s: of the whole job.
        fits: on GPU, host and disk.
    """

    value: int
    device_bytes: int
    over_bytes: int
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    micro_batch: int
    grad_accum: int
    global_batch: int
    world_size: int
    fits: bool
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One variable moved.

    Attributes:
        at: its value in the plan.
        points: by rising value; values the pinned settings cannot take are left out.
        last_fit: the largest value found to fit where a larger one does not; None where none fits or the last tried still does.
        step: distance to the value above ``last_fit``, which does not fit; 0 where only the listed values exist.
        capacity_bytes: usable memory of one GPU.
        left_out: values that were tried and refused, and the first reason.
    """

    variable: Variable
    at: int
    points: tuple[Point, ...]
    last_fit: int | None
    step: int
    capacity_bytes: int
    left_out: tuple[int, ...]
    reason: str


def curve(request: PlanRequest, settings: Mapping[str, Any], variable: Variable, hub: Hub | None = None) -> Curve:
    """Move one variable of a plan.

    Args:
        request: the question that was answered.
        settings: recommended settings of the answer, as in its document; all of them are pinned.
        variable: ``sequence`` and ``micro-batch`` keep the devices, ``gpus`` keeps both. A global batch that the request names is kept
            by accumulating less or more, so only values that divide it are there; otherwise the accumulation is kept.
        hub: where models named by ``hf_id`` are fetched from.

    Raises:
        InvalidRequestError: the request cannot be answered, or not with these settings.
    """
    request = request.model_copy(update={"model": local_model(request.model, hub)})
    with EFFORT.budget() as budget:
        return _moved(_Moved.of(request, settings, budget), variable)


def pins_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted paths of the request that pin these settings; degrees of 1 are left out.

    Example:
        >>> pins_of({"strategy": "hsdp", "shard_group_size": 8, "hpz_group_size": 1, "tensor_parallel": 2})["constraints.shard_group_size"]
        8
    """
    own = ("framework", "strategy", "offload_optimizer", "offload_parameters")
    pins = {f"constraints.{key}": settings.get(key) for key in own}
    pins |= {f"training.{key}": settings.get(key) for key in ("micro_batch", "grad_accum", "activation_checkpointing")}
    pins |= {f"constraints.{axis}": settings[axis] for axis in _AXES if settings.get(axis, 1) > 1}
    if settings["strategy"] == "hsdp" or settings["hpz_group_size"] > 1:
        group = settings["hpz_group_size"] if settings["hpz_group_size"] > 1 else settings["shard_group_size"]
        pins["constraints.shard_group_size"] = group
    return pins | ({"training.activation_offload": True} if settings.get("activation_offload") else {})


_AXES = ("tensor_parallel", "pipeline_parallel", "sequence_parallel", "expert_parallel")


def pinned(request: PlanRequest, settings: Mapping[str, Any], **changes: Any) -> PlanRequest:
    """The request with every setting pinned, and these fields of ``training`` changed.

    A global batch that is named stays, and frees the accumulation where micro-batch or devices move.
    """
    training: dict[str, Any] = {"seq_len": settings["seq_len"], "tokens_from": None, "activation_offload": settings["activation_offload"]}
    constraints: dict[str, Any] = dict.fromkeys(_AXES, 1)
    for path, value in pins_of(settings).items():
        part, _, key = path.partition(".")
        (training if part == "training" else constraints)[key] = value
    if request.training.global_batch is not None:
        training["grad_accum"] = None
    return request.model_copy(
        update={
            "training": request.training.model_copy(update=training | changes),
            "constraints": request.constraints.model_copy(update=constraints),
            "objective": "throughput",
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """A plan whose variables can be set anew.

    Attributes:
        members: the request's pools that the plan uses.
        joined: the single pool they are taken for; None where there is one.
    """

    request: PlanRequest
    settings: Mapping[str, Any]
    members: tuple[int, ...]
    joined: Pool | None

    @classmethod
    def of(cls, request: PlanRequest, settings: Mapping[str, Any], budget: Budget) -> _Moved:
        members: tuple[int, ...] = (0,)
        joined: Pool | None = None
        if len(request.cluster.pools) > 1:
            chosen = _pool_used(resolve(pinned(request, settings)), settings, budget)
            members, joined = chosen.members, chosen if len(chosen.members) > 1 else None
        return cls(request=request, settings=settings, members=members, joined=joined)

    @property
    def world(self) -> tuple[int, int]:
        """GPUs of a node, and nodes."""
        return int(self.settings["gpus_per_node"]), int(self.settings["nodes"])

    def resolved(self, world: tuple[int, int], **changes: Any) -> Resolved:
        """Everything looked up for these devices and changes."""
        gpus, nodes = world
        request = pinned(self.request, self.settings, **changes)
        pools = [self.request.cluster.pools[member] for member in self.members]
        if self.joined is None:
            pools = [pools[0].model_copy(update={"gpus_per_node": gpus, "nodes": nodes})]
        request = request.model_copy(update={"cluster": request.cluster.model_copy(update={"pools": pools})})
        found = resolve(request)
        if self.joined is None:
            return found
        pool = replace(self.joined, nodes=nodes)
        return replace(found, question=replace(found.question, pools=(pool,), setup=replace(found.question.setup, pool=pool)))

    def candidate(self, world: tuple[int, int], **changes: Any) -> Candidate:
        """The plan there, whether or not it fits."""
        question = self.resolved(world, **changes).question
        found = search(replace(question.setup, pool=question.pools[0]), question.constraints)
        index = choose(found.table, "throughput")
        evaluation, places = found.show([nearest(found.table) if index is None else index])
        return candidate_at(evaluation, with_best_sizes(evaluation, places[0]))

    def fits(self, **changes: Any) -> bool:
        """Whether it fits the same devices with these changes."""
        question = self.resolved(self.world, **changes).question
        try:
            return bool(search(replace(question.setup, pool=question.pools[0]), question.constraints).table.fits.any())
        except InvalidRequestError:
            return False


def _pool_used(resolved: Resolved, settings: Mapping[str, Any], budget: Budget) -> Pool:
    """The pool, or pools joined, that the settings are for; the best of several that are alike."""
    gpus, nodes = settings["gpus_per_node"], settings["nodes"]
    pools = pool_choices(resolved.question.pools)
    same = [p for p in pools if (p.node.gpus_per_node, p.nodes) == (gpus, nodes)]
    wide = [p for p in pools if p.node.gpus_per_node >= gpus and p.nodes >= nodes]
    indices = {p.members for p in same or wide or pools}
    tried = [found for found in try_pools(resolved.question, budget) if found.setup.pool.members in indices]
    if not tried:
        raise InvalidRequestError(f"none of the pools has {nodes} nodes of {gpus} GPUs, which this plan uses")
    return best_of(tried, "throughput")[0].setup.pool


_Evaluate = Callable[[int], Candidate]


def _moved(plan: _Moved, variable: Variable) -> Curve:
    at, values, evaluate = _MOVES[variable](plan)
    points, left_out, reason, capacity = list[Point](), list[int](), "", 0
    for value in values:
        try:
            found = evaluate(value)
        except InvalidRequestError as error:
            left_out.append(value)
            reason = reason or error.detail
            continue
        points.append(_point(value, found))
        capacity = found.gpu.capacity_bytes
    if not points:
        raise InvalidRequestError(f"no other {variable} can be computed with these settings: {reason}")
    step = _sequence_step(plan.settings) if variable == "sequence" else 0
    return Curve(
        variable=variable, at=at, points=tuple(points), last_fit=_last_fit(plan, points, step), step=step,
        capacity_bytes=capacity, left_out=tuple(left_out), reason=reason,
    )  # fmt: skip


def _point(value: int, found: Candidate) -> Point:
    gpu, time, s = found.gpu, found.time, found.settings
    return Point(
        value=value, device_bytes=gpu.device_bytes, over_bytes=max(0, gpu.needed_bytes - gpu.capacity_bytes), step_s=time.step_s,
        tokens_per_s=time.tokens_per_s, tokens_per_s_per_gpu=time.tokens_per_s_per_gpu, micro_batch=s.micro_batch,
        grad_accum=s.grad_accum, global_batch=s.global_batch, world_size=s.world_size, fits=found.verdict != "does_not_fit",
        verdict=found.verdict,
    )  # fmt: skip


def _last_fit(plan: _Moved, points: list[Point], step: int) -> int | None:
    """The largest value that fits below one that does not; between two lengths of sequence it is looked for."""
    fitting = [p.value for p in points if p.fits]
    beyond = [p.value for p in points if not p.fits and (not fitting or p.value > fitting[-1])]
    if not fitting or not beyond:
        return None
    if not step:
        return fitting[-1]
    first = fitting[-1] // step
    more = largest(lambda n: plan.fits(seq_len=(first + n) * step), max(0, beyond[0] // step - first))
    return max(fitting[-1], (first + more) * step)


def _sequence(plan: _Moved) -> tuple[int, Iterable[int], _Evaluate]:
    at, step = int(plan.settings["seq_len"]), _sequence_step(plan.settings)
    low, high = max(step, at // _SEQUENCE_REACH), min(MAX_TOKENS, at * _SEQUENCE_REACH)
    ratio = (high / low) ** (1 / (_SEQUENCE_POINTS - 1))
    tried = {max(1, round(low * ratio**n / step)) * step for n in range(_SEQUENCE_POINTS)}
    values = sorted({min(value, MAX_TOKENS) for value in tried} | {at})
    return at, values, lambda value: plan.candidate(plan.world, seq_len=value)


def _sequence_step(settings: Mapping[str, Any]) -> int:
    return lcm(SEQUENCE_STEP, 2 * int(settings["sequence_parallel"]))


def _micro_batch(plan: _Moved) -> tuple[int, Iterable[int], _Evaluate]:
    s, total = plan.settings, plan.request.training.global_batch
    at = int(s["micro_batch"])
    if total is None:
        values = sorted({at, *_rising(max(_LARGEST_MICRO_BATCH, 4 * at))})
    else:
        values = [n for n in divisors(at * int(s["grad_accum"])) if n <= max(_LARGEST_MICRO_BATCH, at)]
    return at, values, lambda value: plan.candidate(plan.world, micro_batch=value)


def _gpus(plan: _Moved) -> tuple[int, Iterable[int], _Evaluate]:
    gpus, nodes = plan.world
    whole = sorted({nodes, *_rising(max(_MORE_NODES, _MORE_NODES * nodes))})
    worlds = {gpus * n: (gpus, n) for n in whole}
    if plan.joined is None:
        worlds |= {part: (part, 1) for part in divisors(gpus)}
    return gpus * nodes, sorted(worlds), lambda value: plan.candidate(worlds[value])


def _rising(limit: int) -> Iterable[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 32, 48, …, up to a limit.

    Example:
        >>> list(_rising(64))
        [1, 2, 3, 4, 6, 8, 12, 16, 32, 48, 64]
    """
    scale = 1
    while scale <= limit:
        yield from (scale * n for n in _STEPS if scale * n <= limit)
        scale *= 16


_MOVES: dict[Variable, Callable[[_Moved], tuple[int, Iterable[int], _Evaluate]]] = {
    "sequence": _sequence, "micro-batch": _micro_batch, "gpus": _gpus,
}  # fmt: skip
