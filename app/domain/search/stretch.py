"""Objectives that stretch a question until it no longer fits: longest sequence, largest micro-batch, fewest devices.

Memory never shrinks with sequence length or micro-batch, so the last one that fits is found by bisection. It may shrink and grow
with the number of devices (a batch must divide), so those are tried one by one, fewest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from app.domain.cluster.cluster import Pool, pool_choices
from app.domain.errors import InvalidRequestError
from app.domain.search.budget import Budget
from app.domain.search.constraints import UNWRITTEN_AXES, Constraints, with_degrees
from app.domain.search.evaluate import with_recipe
from app.domain.search.scan import any_fits
from app.domain.setup import TrainingSetup

_LONGEST = 2**24
_SEQ_STEP = 256
_LARGEST_MICRO_BATCH = 2**20
_MOST_POOLS, _MOST_PARTS, _MOST_SMALLER = 256, 64, 512


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


def stretched(question: Question, budget: Budget) -> Question:
    """The question at the longest sequence or the largest micro-batch that fits, where that is the objective."""
    recipe = question.setup.recipe
    if question.objective == "longest_sequence":
        probe = _Probe(question, budget)
        steps = probe.largest(lambda n: {"seq_len": n * _SEQ_STEP}, _LONGEST // _SEQ_STEP)
        return replace(question, setup=with_recipe(question.setup, seq_len=max(1, steps) * _SEQ_STEP))
    if question.objective == "largest_micro_batch" and recipe.micro_batch is None and recipe.global_batch is None:
        # With a global batch the micro-batches are its divisors, which the search tries one and all.
        surely = _Probe(question, budget, surely=True)
        probe = surely if surely.fits_any(micro_batch=1) else _Probe(question, budget)
        size = probe.largest(lambda n: {"micro_batch": n}, _LARGEST_MICRO_BATCH)
        return replace(question, setup=with_recipe(question.setup, micro_batch=max(1, size)))
    return question


def pools_of(question: Question, budget: Budget) -> tuple[Pool, ...]:
    """The pools to search: every choice, or the smallest part of one that fits where the fewest devices are wanted."""
    choices = pool_choices(question.pools)
    if not choices:
        raise InvalidRequestError.at("cluster", "pools", msg="there is no pool of GPUs", hint="give at least one pool")
    if question.objective != "fewest_gpus":
        return choices
    smaller = sorted((part for pool in choices for part in smaller_pools(pool, len(choices))), key=lambda pool: pool.world_size)
    for devices, alike in groupby(smaller, key=lambda pool: pool.world_size):
        distinct: list[Pool] = []
        for pool in alike:
            if not any((pool.node, pool.nodes) == (other.node, other.nodes) for other in distinct):
                distinct.append(pool)
        fitting = tuple(pool for pool in distinct if _Probe(replace(question, pools=(pool,)), budget).fits_any())
        if fitting:
            return fitting
        if not budget.may_probe():
            budget.stop(f"jobs of up to {devices:,} GPUs were tried, of which none fits, and then all GPUs")
            break
    return choices


class _Probe:
    """Asks whether anything fits, under changes of the recipe; those without a script count where none has one."""

    def __init__(self, question: Question, budget: Budget, *, surely: bool = False) -> None:
        self._question, self._budget, self._surely = question, budget, surely
        self._pools = pool_choices(question.pools)

    def fits_any(self, **changes: object) -> bool:
        """Whether any candidate on any pool fits."""
        for constraints in self._wishes():
            legal = False
            for pool in self._pools:
                fits = self._fits(pool, constraints, changes)
                if fits:
                    return True
                legal |= fits is not None
            if legal:
                break
        return False

    def largest(self, changes_of: Callable[[int], dict[str, object]], limit: int) -> int:
        """Largest number up to ``limit`` whose changes fit on some pool: on one after the other, each asked first for one more."""
        constraints = next((c for c in self._wishes() if self._legal(c, changes_of(1))), self._question.constraints)
        best = 0

        def holds(pool: Pool, number: int) -> bool:
            if number <= best:
                return True
            if not self._budget.may_probe():
                self._budget.stop("larger ones than the planned may fit as well")
                return False
            return bool(self._fits(pool, constraints, changes_of(number)))

        for pool in self._pools:
            if not best or (best < limit and holds(pool, best + 1)):
                best = largest(partial(holds, pool), limit)
        return best

    def _wishes(self) -> Iterable[Constraints]:
        pins = self._question.constraints
        return dict.fromkeys((with_degrees(pins, UNWRITTEN_AXES), pins))

    def _legal(self, constraints: Constraints, changes: dict[str, object]) -> bool:
        return any(self._fits(pool, constraints, changes) is not None for pool in self._pools)

    def _fits(self, pool: Pool, constraints: Constraints, changes: dict[str, object]) -> bool | None:
        """Whether any candidate on a pool fits; None where there is none."""
        setup = replace(with_recipe(self._question.setup, **changes), pool=pool)
        try:
            return any_fits(setup, constraints, self._budget, surely=self._surely)
        except InvalidRequestError:
            return None


def smaller_pools(pool: Pool, choices: int = 1) -> list[Pool]:
    """The pool with fewer devices: parts of one node, then whole nodes, every number of them that a node or a rack may have.

    Beyond 256 choices of nodes, or less where there are more than two pools to try, those are left out that are no multiple of a power
    of two near the total; of devices of one node, beyond 64.

    Args:
        choices: how many pools are tried like this one.
    """
    parts = _numbers(pool.node.gpus_per_node - 1, _MOST_PARTS)
    nodes = _numbers(pool.nodes, min(_MOST_POOLS, max(16, _MOST_SMALLER // choices)))
    return [replace(pool, node=replace(pool.node, gpus_per_node=g), nodes=1) for g in parts] + [replace(pool, nodes=n) for n in nodes]


def _numbers(most: int, choices: int) -> list[int]:
    """From 1 to ``most``: all of them, or as many as there may be choices, and powers of two."""
    step = 1
    while most // step > choices:
        step *= 2
    return sorted({n for n in range(1, most + 1) if n % step == 0 or n & (n - 1) == 0} | ({most} if most else set()))


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
