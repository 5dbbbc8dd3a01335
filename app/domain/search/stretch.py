"""Objectives that stretch a question until it no longer fits: longest sequence, largest micro-batch, fewest devices.

Memory never shrinks with sequence length or micro-batch, so the last one that fits is found by bisection. It may shrink and grow
with the number of devices (a batch must divide), so those are tried one by one, fewest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from app.domain.cluster.cluster import Pool, pool_choices
from app.domain.errors import InvalidRequestError
from app.domain.search.constraints import UNWRITTEN_AXES, Constraints, with_degrees
from app.domain.search.evaluate import Table, is_written, with_recipe
from app.domain.search.scan import search
from app.domain.setup import Array, TrainingSetup

_LONGEST = 2**24
_SEQ_STEP = 256
_LARGEST_MICRO_BATCH = 2**20
_MOST_POOLS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One planning question.

    Attributes:
        setup: with the first pool; the planner replaces the pool by each choice.
        pools: as given, unequal ones allowed.
        constraints: what is pinned.
        objective: what to optimise.
    """

    setup: TrainingSetup
    pools: Sequence[Pool]
    constraints: Constraints
    objective: str


def stretched(question: Question) -> Question:
    """The question at the longest sequence or the largest micro-batch that fits, where that is the objective."""
    recipe = question.setup.recipe
    if question.objective == "longest_sequence":
        pools = pool_choices(question.pools)
        steps = largest(lambda n: _fits(question, pools, seq_len=n * _SEQ_STEP), _LONGEST // _SEQ_STEP)
        return replace(question, setup=with_recipe(question.setup, seq_len=max(1, steps) * _SEQ_STEP))
    if question.objective == "largest_micro_batch" and recipe.micro_batch is None and recipe.global_batch is None:
        # With a global batch the micro-batches are its divisors, which the search tries one and all.
        pools = pool_choices(question.pools)
        surely = _fits(question, pools, micro_batch=1, surely=True)
        size = largest(lambda n: _fits(question, pools, micro_batch=n, surely=surely), _LARGEST_MICRO_BATCH)
        return replace(question, setup=with_recipe(question.setup, micro_batch=max(1, size)))
    return question


def pools_of(question: Question) -> tuple[Pool, ...]:
    """The pools to search: every choice, or the smallest part of one that fits where the fewest devices are wanted."""
    choices = pool_choices(question.pools)
    if not choices:
        raise InvalidRequestError.at("cluster", "pools", msg="there is no pool of GPUs", hint="give at least one pool")
    if question.objective != "fewest_gpus":
        return choices
    smaller = sorted((part for pool in choices for part in smaller_pools(pool)), key=lambda pool: pool.world_size)
    for _, alike in groupby(smaller, key=lambda pool: pool.world_size):
        fitting = tuple(pool for pool in alike if _fits(question, (pool,)))
        if fitting:
            return fitting
    return choices


def _fits(question: Question, pools: Sequence[Pool], *, surely: bool = False, **changes: object) -> bool:
    """Whether any candidate on any pool fits under a changed recipe; those without a script count where none has one."""
    pins, setup = question.constraints, with_recipe(question.setup, **changes)
    written = with_degrees(pins, UNWRITTEN_AXES)
    for constraints in dict.fromkeys((written, pins)):
        found = []
        for pool in pools:
            try:
                found.append(search(replace(setup, pool=pool), constraints, timed=False).table)
            except InvalidRequestError:
                continue
        if found:
            return any(bool(((table.safe if surely else table.fits) & _counted(setup, table)).any()) for table in found)
    return False


def _counted(setup: TrainingSetup, table: Table) -> Array:
    """Candidates that count: those whose script fits, where a script can be written for any."""
    return table.written if is_written(setup, table).any() else np.ones(len(table), dtype=bool)


def smaller_pools(pool: Pool) -> list[Pool]:
    """The pool with fewer devices: parts of one node, then whole nodes, every number of them that a node or a rack may have.

    Beyond 256 choices of nodes, those are left out that are no multiple of a power of two near the total.
    """
    parts = [replace(pool, node=replace(pool.node, gpus_per_node=g), nodes=1) for g in range(1, pool.node.gpus_per_node)]
    step = 1
    while pool.nodes // step > _MOST_POOLS:
        step *= 2
    nodes = sorted({n for n in range(1, pool.nodes + 1) if n % step == 0 or n & (n - 1) == 0} | {pool.nodes})
    return parts + [replace(pool, nodes=n) for n in nodes]


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """Largest whole number up to ``limit`` for which a monotone condition holds; 0 if it holds for none.

    Example:
        >>> largest(lambda n: n * n <= 50, 100)
        7
    """
    low, high = 0, 1
    while high < limit and holds(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
