"""When nothing fits: the changes that would make it fit, each computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from app.domain.errors import InvalidRequestError
from app.domain.plan import WayOut
from app.domain.recipe.adapter import Adapter
from app.domain.search.budget import Budget
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import Evaluation, Table, with_recipe
from app.domain.search.objective import choose, nearest
from app.domain.search.scan import search
from app.domain.search.space import bound_shared_by
from app.domain.setup import TrainingSetup

_PINS = (
    "constraints.strategy",
    "constraints.framework",
    "constraints.shard_group_size",
    "constraints.offload_optimizer",
    "constraints.offload_parameters",
    "training.activation_checkpointing",
    "training.micro_batch",
    "training.grad_accum",
)


def ways_out_of(evaluation: Evaluation, constraints: Constraints, budget: Budget) -> tuple[WayOut, ...]:
    """Changes of one thing at a time that fit, fastest first; those that do not fit follow by how near they come.

    They share the bound of a search, and end with the budget's time.
    """
    changes = [*_changes(evaluation, constraints)]
    bound = bound_shared_by(len(changes)) if changes else 0
    found = []
    for label, changed, setup, pins in changes:
        if budget.go_on() and (table := _search(setup, pins, bound)) is not None:
            found.append(_way(label, changed, table))
    fitting = sorted((w for w in found if w[0].fits), key=lambda w: -w[1])
    others = sorted((w for w in found if not w[0].fits), key=lambda w: w[0].device_bytes)
    return tuple(way for way, _ in (fitting + others[: max(0, 3 - len(fitting))]))


def _search(setup: TrainingSetup, constraints: Constraints, bound: int) -> Table | None:
    try:
        return search(setup, constraints, limit=bound).table
    except InvalidRequestError:
        return None


def _way(label: str, changes: dict[str, Any], table: Table) -> tuple[WayOut, float]:
    index = choose(table, "throughput")
    row = nearest(table) if index is None else index
    way = WayOut(label=label, changes=changes, device_bytes=round(float(table.device_bytes[row])), fits=index is not None)
    return way, float(table.tokens_per_s[row])


def _changes(evaluation: Evaluation, constraints: Constraints) -> Iterator[tuple[str, dict[str, Any], TrainingSetup, Constraints]]:
    setup, recipe = evaluation.setup, evaluation.setup.recipe
    if recipe.activation_checkpointing in ("none", "selective"):
        yield (
            "checkpoint activations fully",
            {"training.activation_checkpointing": "full"},
            with_recipe(setup, activation_checkpointing="full"),
            constraints,
        )
    if recipe.micro_batch and recipe.micro_batch > 1:
        yield "micro-batch 1", {"training.micro_batch": 1}, with_recipe(setup, micro_batch=1, grad_accum=None), constraints
    if not recipe.fused_loss:
        yield "a fused loss", {"training.fused_loss": True}, with_recipe(setup, fused_loss=True), constraints
    if constraints.strategy or constraints.framework:
        pins = replace(constraints, strategy=None, framework=None, offload_optimizer=None, offload_parameters=None)
        yield "another strategy", {"constraints.strategy": None, "constraints.framework": None}, setup, pins
    if "none" in (constraints.offload_optimizer, constraints.offload_parameters):
        pins = replace(constraints, offload_optimizer=None, offload_parameters=None)
        yield "offload to the host", {"constraints.offload_optimizer": None, "constraints.offload_parameters": None}, setup, pins
    yield from _without_frozen(setup, constraints)
    if recipe.activation_checkpointing or recipe.micro_batch or constraints != Constraints():
        free = with_recipe(setup, activation_checkpointing=None, activation_offload=None, micro_batch=None, grad_accum=None)
        degrees = Constraints(
            tensor_parallel=constraints.tensor_parallel, pipeline_parallel=constraints.pipeline_parallel,
            sequence_parallel=constraints.sequence_parallel, expert_parallel=constraints.expert_parallel,
        )  # fmt: skip
        yield "strategy, checkpointing and micro-batch left to the planner", dict.fromkeys(_PINS), free, degrees
    if recipe.seq_len >= 1024:
        yield (
            f"sequences of {recipe.seq_len // 2}",
            {"training.seq_len": recipe.seq_len // 2},
            with_recipe(setup, seq_len=recipe.seq_len // 2),
            constraints,
        )
    more = replace(setup, pool=replace(setup.pool, nodes=setup.pool.nodes * 2))
    yield f"{more.pool.nodes} nodes", {"cluster.pools.0.nodes": more.pool.nodes}, more, constraints
    if recipe.optimizer == "adamw":
        yield "8-bit Adam", {"training.optimizer": "adamw_8bit"}, with_recipe(setup, optimizer="adamw_8bit"), constraints
    if recipe.adapter is None:
        yield (
            "train a LoRA adapter",
            {"training.adapter": {"kind": "lora", "rank": 16}},
            with_recipe(setup, adapter=Adapter(kind="lora")),
            constraints,
        )


def _without_frozen(setup: TrainingSetup, constraints: Constraints) -> Iterator[tuple[str, dict[str, Any], TrainingSetup, Constraints]]:
    """Frozen models in host memory between their forwards."""
    moved = {n: c for n, c in enumerate(setup.companions) if not (c.trains or c.on_host or c.cache_tokens)}
    if moved:
        companions = tuple(replace(c, on_host=n in moved or c.on_host) for n, c in enumerate(setup.companions))
        changes = {f"companions.{n}.offload_parameters": "cpu" for n in moved}
        yield f"{' and '.join(c.role for c in moved.values())} on the host", changes, replace(setup, companions=companions), constraints
