"""The planner: try every pool, evaluate every candidate, recommend one and say what was passed over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.domain.cluster.cluster import Pool, pool_choices
from app.domain.errors import InvalidRequestError
from app.domain.model import parameters as count
from app.domain.plan import ModelSummary, Plan, Rejection
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import Evaluation, evaluate
from app.domain.search.explain import ladder_of, summary_of
from app.domain.search.objective import choose, nearest, pareto
from app.domain.search.results import candidate_at
from app.domain.search.warn import warnings_of
from app.domain.search.ways_out import ways_out_of
from app.domain.setup import TrainingSetup
from app.domain.traffic.ideal import ideal_states_bytes, ideal_traffic_bytes

_LONGEST = 2**24
_SEQ_STEP = 256


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


def make_plan(question: Question) -> Plan:
    """Answer a question.

    Raises:
        InvalidRequestError: the request makes no sense for any pool.
    """
    started = time.perf_counter()
    if question.objective == "longest_sequence":
        question = _with_longest_sequence(question)
    evaluations = _evaluations(question)
    best, chosen = _best(evaluations, question.objective)
    index = nearest(best) if chosen is None else chosen
    recommended = candidate_at(best, index)
    alternatives = () if chosen is None else tuple(candidate_at(best, i) for i in pareto(best, index))
    rejected: Counter[str] = Counter()
    for evaluation in evaluations:
        rejected.update(evaluation.rejected)
    trainable, ranks = best.numbers.trainable, int(best.columns.zero_ranks[index])
    shortfall = max(0, round(float(best.over_bytes[index]))) if chosen is None else 0
    return Plan(
        verdict=recommended.verdict,
        summary=summary_of(best, recommended, shortfall),
        model=model_summary(best),
        recommended=recommended,
        ideal_states_bytes=ideal_states_bytes(trainable, ranks),
        ideal_traffic_bytes=ideal_traffic_bytes(trainable, ranks),
        alternatives=alternatives,
        ladder=ladder_of(best, index),
        rejected=tuple(Rejection(reason=r, count=n) for r, n in rejected.most_common()),
        candidates=sum(len(e.columns) for e in evaluations),
        feasible=sum(int(e.fits.sum()) for e in evaluations),
        elapsed_ms=(time.perf_counter() - started) * 1000,
        warnings=warnings_of(best, index, recommended, question.constraints, question.pools),
        ways_out=ways_out_of(best, question.constraints) if chosen is None else (),
        shortfall_bytes=shortfall,
    )


def model_summary(evaluation: Evaluation) -> ModelSummary:
    """The model as counted."""
    model, numbers = evaluation.setup.model, evaluation.numbers
    return ModelSummary(
        name=model.name, total_params=numbers.total, active_params=count.active_params(model) if count.is_moe(model) else None,
        trainable_params=numbers.trainable, counted_by=f"family {model.family}", inferred=model.inferred,
    )  # fmt: skip


def _evaluations(question: Question) -> list[Evaluation]:
    """One evaluation a pool choice; choices the request cannot run on are left out unless none can."""
    found, refusals = [], list[InvalidRequestError]()
    for pool in _pool_choices(question):
        try:
            evaluation = evaluate(replace(question.setup, pool=pool), question.constraints)
        except InvalidRequestError as refusal:
            refusals.append(refusal)
            continue
        found.append(evaluation)
    if not found:
        raise refusals[0]
    return found


def _pool_choices(question: Question) -> tuple[Pool, ...]:
    choices = pool_choices(question.pools)
    if not choices:
        raise InvalidRequestError.at("cluster", "pools", msg="there is no pool of GPUs", hint="give at least one pool")
    if question.objective != "fewest_gpus":
        return choices
    return tuple(smaller for pool in choices for smaller in _smaller(pool))


def _smaller(pool: Pool) -> list[Pool]:
    """The pool with fewer devices: whole nodes, then parts of one node, in powers of two."""
    nodes = [n for n in range(1, pool.nodes + 1) if n == pool.nodes or n & (n - 1) == 0]
    gpus = [g for g in range(1, pool.node.gpus_per_node) if g & (g - 1) == 0]
    parts = [replace(pool, node=replace(pool.node, gpus_per_node=g), nodes=1) for g in gpus]
    return parts + [replace(pool, nodes=n) for n in nodes]


def _best(evaluations: Sequence[Evaluation], objective: str) -> tuple[Evaluation, int | None]:
    """The evaluation whose choice is best: fewest devices for ``fewest_gpus``, most tokens/s otherwise."""
    choices = [(e, i) for e in evaluations if (i := choose(e, objective)) is not None]
    if not choices:
        return min(evaluations, key=lambda e: float(e.over_bytes[nearest(e)])), None
    if objective == "fewest_gpus":
        return min(choices, key=lambda c: (int(c[0].columns.world_size[c[1]]), -float(c[0].tokens_per_s[c[1]])))
    return max(choices, key=lambda c: (bool(c[0].safe[c[1]]), float(c[0].tokens_per_s[c[1]])))


def _with_longest_sequence(question: Question) -> Question:
    """The question at the longest sequence that still fits, in steps of 256 tokens; memory grows with length, so bisection is exact."""

    def fits(steps: int) -> bool:
        recipe = replace(question.setup.recipe, seq_len=steps * _SEQ_STEP)
        trial = replace(question, setup=replace(question.setup, recipe=recipe), objective="simplest")
        return any(bool(e.fits.any()) for e in _evaluations(trial))

    steps = largest(fits, _LONGEST // _SEQ_STEP)
    seq_len = max(1, steps) * _SEQ_STEP
    return replace(question, setup=replace(question.setup, recipe=replace(question.setup.recipe, seq_len=seq_len)))


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
