"""What ran: the request with what the log adds to it, and what the planner says of exactly that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.diagnose.situation import DEFAULT_BUCKET, DEFAULT_PREFETCH, DEFAULT_SUB_GROUP, Situation
from app.domain.errors import InvalidRequestError
from app.domain.parallel.strategy import STRATEGIES
from app.domain.plan import Candidate
from app.domain.search.budget import Budget
from app.domain.search.planner import make_plan
from app.domain.units import DTYPE_BYTES, GIB
from app.ingest.hub import Hub
from app.ingest.logs import LogFacts
from app.services.companions import located
from app.services.diagnose.asked import USUAL_SEQUENCE, PartialRequest
from app.services.request import ClusterIn, PlanRequest, PoolIn
from app.services.resolve import Resolved, local_model, resolve

_AXES = ("tensor_parallel", "pipeline_parallel", "sequence_parallel", "expert_parallel")
_ALONE = ClusterIn(pools=[PoolIn(gpu="h100-sxm-80gb", gpus_per_node=1)])
_SAME_CARD = 0.04
"""Share by which a card's memory in a log may differ from the catalogue's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The run as it is known.

    Attributes:
        request: with every choice pinned that decides its memory; ``candidate`` what the planner says of it.
        complete: model and cluster are given; otherwise only sizes that do not depend on them mean anything.
        assumed: what was taken for lack of better, in words.
        knows: fields that were given, of those that sizes depend on.
    """

    request: PlanRequest
    resolved: Resolved
    candidate: Candidate
    situation: Situation
    complete: bool
    assumed: tuple[str, ...]
    knows: frozenset[str]


@dataclass(frozen=True, slots=True)
class Judge:
    """Says what the planner says of a request, for the length of one diagnosis."""

    budget: Budget

    def candidate(self, request: PlanRequest) -> Candidate:
        """The candidate recommended for a request, or nearest to fitting; raises ``InvalidRequestError``."""
        return make_plan(resolve(request).question, self.budget, brief=True).recommended

    def tried(self, request: PlanRequest) -> Candidate | None:
        """The same, None where a request makes no sense."""
        try:
            return self.candidate(request)
        except InvalidRequestError:
            return None


def local(asked: PartialRequest, hub: Hub | None) -> PartialRequest:
    """The request with its models as config.json where they are named on a hub, which is asked once and not while others wait."""
    with located("request"):
        companions = []
        for number, companion in enumerate(asked.companions):
            with located("companions", number):
                companions.append(companion.model_copy(update={"model": local_model(companion.model, hub)}))
        model = asked.model and local_model(asked.model, hub)
    return asked.model_copy(update={"model": model, "companions": companions})


def run_of(asked: PartialRequest, facts: LogFacts, judge: Judge, batch: int | None = None) -> Ran:
    """The run that a request and a log describe together.

    Args:
        batch: micro-batch that was worked out from the log.

    Raises:
        InvalidRequestError: the request makes no sense, with the path of its fields in the question.
    """
    given = asked.whole(_ALONE)
    pins, assumed = _pins(asked, facts, batch)
    with located("request"):
        try:
            request = _with(_on_card(given, facts), pins)
            candidate = judge.candidate(request)
        except InvalidRequestError:
            # What the log seems to say does not go with the request: then the request counts.
            plain, assumed = _pins(asked, LogFacts(), batch)
            request = _with(given, plain)
            candidate = judge.candidate(request)
        resolved = resolve(request)
    knows = _known(asked)
    return Ran(
        request=request, resolved=resolved, candidate=candidate, situation=_situation(resolved, candidate, asked, facts, batch),
        complete=asked.model is not None and asked.cluster is not None, assumed=(*assumed, *resolved.assumed), knows=knows,
    )  # fmt: skip


def _known(asked: PartialRequest) -> frozenset[str]:
    training, constraints = asked.training, asked.constraints
    found = {name for name in ("micro_batch", "activation_checkpointing") if getattr(training, name) is not None}
    found |= {name for name in ("strategy", "framework") if getattr(constraints, name) is not None}
    found |= {name for name in ("model", "cluster") if getattr(asked, name) is not None}
    return frozenset(found | ({"seq_len"} if asked.knows_length else set()))


def _pins(asked: PartialRequest, facts: LogFacts, batch: int | None) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """What is pinned beside what the request pins, and what of that is a guess."""
    training, constraints = asked.training, asked.constraints
    recipe: dict[str, Any] = {}
    mesh: dict[str, Any] = {axis: 1 for axis in _AXES if getattr(constraints, axis) is None}
    mesh |= {place: "none" for place in ("offload_optimizer", "offload_parameters") if getattr(constraints, place) is None}
    assumed = []
    if constraints.strategy is None and constraints.framework is None:
        mesh |= {key: value for key, value in (("framework", facts.framework), ("strategy", facts.strategy)) if value}
    elif constraints.strategy is None and facts.strategy and facts.framework == constraints.framework:
        mesh["strategy"] = facts.strategy
    if training.micro_batch is None and training.global_batch is None:
        recipe["micro_batch"] = facts.printed.get("micro_batch") or batch or 1
        if not facts.printed.get("micro_batch") and batch is None:
            assumed.append("The micro-batch was not given; 1 sequence is taken.")
    if training.grad_accum is None and training.global_batch is None:
        recipe["grad_accum"] = facts.printed.get("grad_accum") or 1
    if training.activation_checkpointing is None:
        whole = facts.checkpointed or not _shows_frames(facts)
        recipe["activation_checkpointing"] = "full" if whole else "none"
        if not facts.checkpointed:
            assumed.append(f"Checkpointing was not given; {recipe['activation_checkpointing']} is taken.")
    if training.activation_offload is None:
        recipe["activation_offload"] = False
    if not asked.knows_length:
        assumed.append(f"The sequence length was not given; {USUAL_SEQUENCE:,} tokens are taken.")
    return {"training": recipe, "constraints": mesh}, tuple(assumed)


def _shows_frames(facts: LogFacts) -> bool:
    """Whether the stack goes through a model's layers, where checkpointing would be seen."""
    return facts.phase in ("forward", "backward") and bool({"mlp", "attention", "norms"} & set(facts.hints))


def _with(request: PlanRequest, pins: Mapping[str, Mapping[str, Any]]) -> PlanRequest:
    parts = {part: getattr(request, part).model_copy(update=dict(values)) for part, values in pins.items()}
    return request.model_copy(update=parts)


def _on_card(request: PlanRequest, facts: LogFacts) -> PlanRequest:
    """The request on the card the log names: a catalogue's figure gives way to what the driver said."""
    pools, said = request.cluster.pools, facts.gpu.capacity
    if said is None or len(pools) > 1 or pools[0].gpu_memory_gib is not None or said < GIB:
        return request
    there = resolve(request).question.setup.pool.node.gpu.memory_bytes
    if abs(said - there) <= _SAME_CARD * there:
        return request
    pool = pools[0].model_copy(update={"gpu_memory_gib": said / GIB})
    return request.model_copy(update={"cluster": ClusterIn(pools=[pool])})


def _situation(resolved: Resolved, candidate: Candidate, asked: PartialRequest, facts: LogFacts, batch: int | None) -> Situation:
    setup, s = resolved.question.setup, candidate.settings
    named = (asked.constraints.framework or facts.framework, asked.constraints.strategy or facts.strategy)
    if named[1] is not None:
        frameworks, strategies = {s.framework}, {s.strategy}
    else:
        rows = [row for row in STRATEGIES if named[0] in (None, row.framework)]
        frameworks, strategies = {row.framework for row in rows}, {row.name for row in rows}
    hidden = setup.model.hidden_size
    adapter = setup.recipe.adapter
    compute = max(2, int(DTYPE_BYTES[setup.recipe.precision]))  # DeepSpeed stores weights in it, whatever its masters are
    follows = s.micro_batch if asked.training.global_batch and asked.training.grad_accum else None
    return Situation(
        model=setup.model, numbers=setup.numbers, frameworks=frozenset(frameworks), strategies=frozenset(strategies),
        ranks=s.dp * s.sequence_parallel, shard_ranks=max(1, s.shard_group_size),
        micro_batch=asked.training.micro_batch or facts.printed.get("micro_batch") or batch or follows,
        seq_len=setup.recipe.seq_len if asked.knows_length else None,
        compute_bytes=compute, param_bytes=compute if frameworks == {"deepspeed"} else max(2, int(DTYPE_BYTES[s.param_dtype])),
        eager=setup.recipe.attention == "eager", offloads=s.offload_optimizer != "none",
        buckets=_sizes(facts, "reduce_bucket", (s.reduce_bucket_numel, DEFAULT_BUCKET, hidden * hidden)),
        sub_groups=_sizes(facts, "sub_group", (s.sub_group_numel or DEFAULT_SUB_GROUP, DEFAULT_SUB_GROUP)),
        prefetches=_sizes(facts, "prefetch", (s.prefetch_bucket_numel, DEFAULT_PREFETCH, int(0.9 * hidden * hidden))),
        adapter=adapter is not None, base_bytes=0.5 if adapter and adapter.kind == "qlora" and adapter.base_bits == 4 else 2.0,
        tp=s.tensor_parallel, pp=s.pipeline_parallel, sp=s.sequence_parallel, ep=s.expert_parallel,
    )  # fmt: skip


def _sizes(facts: LogFacts, name: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    """A size as the log has it, else those it may have."""
    said = facts.printed.get(name)
    return (said,) if said else tuple(dict.fromkeys(size for size in usual if size))


def on_request(ran: Ran, changes: Mapping[str, Any]) -> PlanRequest:
    """The run's request with dotted paths of training and constraints, and nodes of the first pool, set anew."""
    pins: dict[str, dict[str, Any]] = {"training": {}, "constraints": {}}
    request = ran.request
    for path, value in changes.items():
        part, _, key = path.partition(".")
        if path == "cluster.pools.0.nodes":
            first, *others = request.cluster.pools
            request = request.model_copy(update={"cluster": ClusterIn(pools=[first.model_copy(update={"nodes": value}), *others])})
        else:
            pins[part][key] = value
    return _with(request, pins)
