"""Why not X: what a pinned setting costs, found by a second search with that pin released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from app.domain.errors import InvalidRequestError
from app.domain.plan import Candidate, PlanWarning, Settings
from app.domain.search.budget import Budget
from app.domain.search.constraints import AXES, Constraints, with_degrees
from app.domain.search.evaluate import with_recipe
from app.domain.search.objective import SIMPLER_WITHIN_FRAC, choose
from app.domain.search.scan import Found, scan
from app.domain.search.settings import settings_of
from app.domain.search.space import build_space
from app.domain.search.table import candidate_columns
from app.domain.search.warn.base import warning
from app.domain.setup import TrainingSetup
from app.domain.units import format_number

ASKED_FOR = 8
"""A question that leaves no more candidates than this (lean or roomy buckets, hpZ or not) asks about exactly them."""

MOST_RELEASED = 4
MOST_CANDIDATES = 25_000
"""Bounds of the second searches: pins in the order below, each with at most so many candidates (about 15 ms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    """A pin, where the request has it, and the question without it."""

    name: str
    value: object
    field: str
    setup: TrainingSetup
    constraints: Constraints


def pin_warnings(
    found: Found, chosen: int | None, recommended: Candidate, objective: str, budget: Budget | None = None
) -> Iterator[PlanWarning]:
    """A warning for each pin without which the plan would be more than 5 % faster, or would fit; none after the budget's time.

    Only the objective that asks for speed is answered, and only where something was left open: who pins all choices wants exactly
    that plan, and should not wait for others.
    """
    if objective != "throughput" or len(found.table) <= ASKED_FOR:
        return
    for release in [*_releases(found, recommended.settings)][:MOST_RELEASED]:
        if budget is not None and not budget.go_on():
            budget.stop("what each pin costs was not looked at")
            return
        better = _best_without(release)
        if better is None:
            continue
        tokens_per_s, settings = better
        if getattr(settings, release.name) == release.value:
            continue
        if chosen is None:
            text = f"With {release.name} {release.value} nothing fits; left open, {_shown(settings, release.name)} does"
        else:
            factor = recommended.time.tokens_per_s / tokens_per_s
            if factor >= 1 - SIMPLER_WITHIN_FRAC:
                continue
            per_gpu = tokens_per_s / settings.world_size
            text = f"{release.name} {release.value} costs {100 * (1 - factor):.0f} % of the speed; left open, "
            text += f"{_shown(settings, release.name)} reaches {format_number(per_gpu)} tokens/s per GPU instead of "
            text += format_number(recommended.time.tokens_per_s_per_gpu)
        yield warning("pinned_costs", f"{text}.", release.field, f"Leave {release.name} open.", severity="info")


def _releases(found: Found, settings: Settings) -> Iterator[_Release]:
    """Every pin of the request, those that cost most often first."""
    setup, pins, recipe = found.setup, found.constraints, found.setup.recipe

    def without(*names: str) -> Constraints:
        return replace(pins, **dict.fromkeys(names, None))

    if pins.strategy:
        # A pinned strategy is plain data parallelism where degrees are open; what it costs is compared with others of that kind.
        others = with_degrees(without("strategy"), AXES)
        yield _Release(name="strategy", value=pins.strategy, field="constraints.strategy", setup=setup, constraints=others)
    elif pins.framework:
        yield _Release(name="framework", value=pins.framework, field="constraints.framework", setup=setup, constraints=without("framework"))
    if recipe.activation_checkpointing:
        free = with_recipe(setup, activation_checkpointing=None, activation_offload=None)
        yield _Release(name="activation_checkpointing", value=recipe.activation_checkpointing, field="training.activation_checkpointing",
                       setup=free, constraints=pins)  # fmt: skip
    if recipe.micro_batch:
        # The batch of the optimizer step is the user's, however it is cut.
        free = with_recipe(setup, micro_batch=None, grad_accum=None, global_batch=settings.global_batch)
        yield _Release(name="micro_batch", value=recipe.micro_batch, field="training.micro_batch", setup=free, constraints=pins)
    for name in ("offload_optimizer", "offload_parameters"):
        if value := getattr(pins, name):
            both = without("offload_optimizer", "offload_parameters")
            yield _Release(name=name, value=value, field=f"constraints.{name}", setup=setup, constraints=both)
            break
    for name in ("shard_group_size", *AXES):
        if value := getattr(pins, name):
            yield _Release(name=name, value=value, field=f"constraints.{name}", setup=setup, constraints=without(name))


def _best_without(release: _Release) -> tuple[float, Settings] | None:
    """Speed and settings of the best plan without a pin; None where none fits, or where finding it would take long."""
    setup, constraints = release.setup, release.constraints
    try:
        space = build_space(setup, constraints)
    except InvalidRequestError:
        return None
    if len(space) > MOST_CANDIDATES:
        return None
    table = scan(setup, constraints, space)
    index = choose(table, "throughput")
    if index is None:
        return None
    columns = candidate_columns(space, setup, setup.numbers, np.array([index]))
    return float(table.tokens_per_s[index]), settings_of(setup, columns, 0)


def _shown(settings: Settings, name: str) -> str:
    """A released setting as the better plan has it, with the strategy it belongs to."""
    own = f"{name} {getattr(settings, name)}"
    return own if name == "strategy" else f"{own} ({settings.strategy})"
