"""What a request pins and no framework carries out: refused before anything is searched, with the rule, the arithmetic and the fix.

The rules are those of ``rules.py``. Here each is put to the pins of a request, one strategy at a time: a strategy that breaks one is
passed over, and where none is left the request is refused with the first one's rule alone.

Not refused is what DeepSpeed itself takes and does not do, parameter or NVMe offload below stage 3: such files are in use, people ask
why they run out of memory, and the answer is that plan with a warning (docs/adr/0008).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.errors import FieldError, InvalidRequestError
from app.domain.parallel.mesh import Degrees, divisors
from app.domain.parallel.strategy import Strategy, find_strategies
from app.domain.search.constraints import AXES, Constraints
from app.domain.search.mesh import degrees_of
from app.domain.search.rules import (
    NO_OFFLOAD,
    why_not_companion,
    why_not_degree,
    why_not_device,
    why_not_group,
    why_not_precision,
    why_not_stage,
)
from app.domain.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request's pins and what they are for; degrees left open are 1."""

    setup: TrainingSetup
    constraints: Constraints

    @property
    def degrees(self) -> Degrees:
        return degrees_of(self.constraints)

    @property
    def ranks(self) -> int:
        """Those that states are sharded over."""
        return self.degrees.zero_ranks(self.setup.pool.world_size)


Rule = Callable[[_Asked, Strategy], FieldError | None]


def strategies_for(setup: TrainingSetup, constraints: Constraints) -> tuple[tuple[Strategy, ...], dict[str, int]]:
    """Strategies that allow every pin, and how many others each broken rule excludes.

    Raises:
        InvalidRequestError: none allows them.
    """
    asked = _Asked(setup=setup, constraints=constraints)
    asked.degrees.data_ranks(setup.pool.world_size)
    allowed, refusals = list[Strategy](), list[FieldError]()
    for strategy in find_strategies(constraints.framework, constraints.strategy):
        refusal = next((found for rule in RULES if (found := rule(asked, strategy))), None)
        if refusal:
            refusals.append(refusal)
        else:
            allowed.append(strategy)
    if not allowed:
        refusal = _most_telling(refusals) if refusals else _no_such_pair(constraints)
        raise InvalidRequestError.at(*refusal.loc, msg=refusal.msg, hint=refusal.hint)
    messages = [refusal.msg for refusal in refusals]
    return tuple(allowed), {message: messages.count(message) for message in messages}


def _most_telling(refusals: list[FieldError]) -> FieldError:
    """The rule most strategies break; of several that of the most capable strategy, which comes last."""
    return max(reversed(refusals), key=lambda refusal: sum(other.msg == refusal.msg for other in refusals))


def _no_such_pair(constraints: Constraints) -> FieldError:
    names = ", ".join(sorted({s.name for s in find_strategies(constraints.framework, None)}))
    message = f"{constraints.framework} has no strategy {constraints.strategy}"
    return FieldError(("constraints", "strategy"), message, f"{constraints.framework} offers {names}")


def _degrees(asked: _Asked, strategy: Strategy) -> FieldError | None:
    """Degrees that do not cut heads, layers, experts or the sequence into whole parts."""
    # The axis of a sequence is Ulysses', unless the request itself names FSDP2, whose files have context parallelism.
    named = asked.constraints.framework or asked.constraints.strategy
    framework = strategy.framework if named else "deepspeed"
    for axis in AXES:
        if message := why_not_degree(asked.setup, axis, getattr(asked.degrees, axis), framework):
            return FieldError(("constraints", axis), message, _other_degrees(asked.setup, axis, framework))
        if message := why_not_companion(asked.setup, axis, getattr(asked.degrees, axis), framework):
            return FieldError(("constraints", axis), message, _other_degrees(asked.setup, axis, framework))
    ranks, degree = asked.ranks, asked.degrees.expert_parallel
    if ranks % degree:
        message = f"expert_parallel {degree} does not divide the {ranks} ranks that hold different experts"
        return FieldError(("constraints", "expert_parallel"), message, f"use {', '.join(map(str, divisors(ranks)))}")
    return None


def _other_degrees(setup: TrainingSetup, axis: str, framework: str) -> str:
    every = divisors(setup.pool.world_size)
    fits = [d for d in every if not (why_not_degree(setup, axis, d, framework) or why_not_companion(setup, axis, d, framework))]
    hint = f"use {', '.join(map(str, fits))}"
    return f"{hint}, or another seq_len" if axis == "sequence_parallel" else hint


def _pipeline(asked: _Asked, strategy: Strategy) -> FieldError | None:
    """Stages of a pipeline with gradients or parameters sharded, which DeepSpeed asserts against."""
    degree, reason = asked.degrees.pipeline_parallel, why_not_stage(strategy)
    if degree == 1 or not reason:
        return None
    message = f"pipeline_parallel {degree} with {strategy.name}: {reason}"
    return FieldError(("constraints", "pipeline_parallel"), message, "use strategy zero1, or pipeline_parallel 1")


def _group(asked: _Asked, strategy: Strategy) -> FieldError | None:
    """Shard groups that are none, or that cross what they are to stay inside of."""
    group, degrees, ranks = asked.constraints.shard_group_size, asked.degrees, asked.ranks
    if group is None:
        return None
    gpus = asked.setup.pool.node.gpus_per_node
    message = why_not_group(strategy, group, ranks, degrees, gpus)
    if not message:
        return None
    fix = "leave shard_group_size open"
    if strategy.states == "group":
        fix = f"use {', '.join(str(d) for d in divisors(ranks))}"
    elif strategy.name == "zero3" and not why_not_group(strategy, gpus, ranks, degrees, gpus):
        fix = f"use {gpus}, the GPUs of one node, or leave it open"
    return FieldError(("constraints", "shard_group_size"), message, fix)


def _offload(asked: _Asked, strategy: Strategy) -> FieldError | None:
    """Offload the framework has not. What DeepSpeed takes and ignores is warned about instead."""
    pins = {name: getattr(asked.constraints, name) for name in ("offload_optimizer", "offload_parameters")}
    wanted = {name: where for name, where in pins.items() if where not in (None, "none")}
    if not wanted:
        return None
    first, where = next(iter(wanted.items()))
    if strategy.states == "none" or strategy.framework == "ddp":
        return FieldError(("constraints", first), f"{first} {where}: {NO_OFFLOAD[strategy.framework]}", _OFFLOADS)
    if strategy.parameters == "all" and pins["offload_optimizer"] == "none" and strategy.framework == "deepspeed":
        message = f"{first} {where} with offload_optimizer none is not planned: it moves 2 bytes a parameter and leaves 12 on the GPU"
        return FieldError(("constraints", first), message, "set offload_optimizer cpu, which moves the 12, or offload_parameters none")
    if strategy.framework != "fsdp2":
        return None
    for name, where in wanted.items():
        if where == "nvme":
            message = f"{name} nvme: FSDP2 offloads to host memory only"
            return FieldError(("constraints", name), message, "use cpu, or strategy zero3, which DeepSpeed offloads to NVMe")
    if "none" in pins.values():
        other = next(name for name, where in pins.items() if where == "none")
        message = f"{first} cpu with {other} none: FSDP2's CPUOffloadPolicy moves parameters, gradients and optimizer states together"
        return FieldError(("constraints", first), message, "set both to cpu or both to none; zero2 offloads the optimizer alone")
    return None


def _precision(asked: _Asked, strategy: Strategy) -> FieldError | None:
    """Pure 16-bit training where the strategy keeps a master all the same, or needs an offload that is pinned away."""
    if reason := why_not_device(asked.setup, strategy):
        return FieldError(("training", "precision"), reason, "use precision fp32, or a framework that does not refuse it: fsdp2 or ddp")
    where = asked.constraints.offload_optimizer or "cpu"
    on_disk = where == "nvme" and strategy.parameters != "none"  # below stage 3 DeepSpeed makes it the CPU
    reason = why_not_precision(asked.setup, strategy, (2 if on_disk else int(where != "none"), 0))
    return (
        FieldError(("training", "master_weights"), reason, "set master_weights true, or use precision bf16 with zero2") if reason else None
    )


def _release(asked: _Asked, strategy: Strategy) -> FieldError | None:
    """What the named release of DeepSpeed has not learnt yet."""
    versions, recipe = asked.constraints.versions, asked.setup.recipe
    if versions is None or strategy.framework != "deepspeed":
        return None
    needed = []
    if recipe.optimizer == "muon":
        needed += [("optimizer", "optimizer.type Muon")] + [("optimizer", "optimizer.type Muon at stage 3")] * (strategy.name == "zero3")
    if not recipe.master_weights and recipe.precision == "fp16":
        needed.append(("master_weights", f"fp16.fp16_master_weights_and_grads at stage {strategy.name[-1]}"))
    elif not recipe.master_weights and recipe.precision != "fp32" and strategy.states != "none":
        needed.append(("master_weights", "bf16.bf16_master_weights_and_grads"))
    for field, name in needed:
        if key := versions.lacking("deepspeed", name):
            message = f"DeepSpeed {versions.of('deepspeed')} does not know {key.loses}, which came with {key.since}"
            return FieldError(("training", field), message, f"use {key.replaced_by}, or deepspeed_version {key.since} or newer")
    return None


_OFFLOADS = "use DeepSpeed's zero1, zero2 or zero3, or fsdp_full, which have it, or none"

RULES: tuple[Rule, ...] = (_degrees, _pipeline, _group, _offload, _precision, _release)
