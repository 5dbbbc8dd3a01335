"""The planner: try every pool, evaluate every candidate, recommend one and say what was passed over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from app.domain.errors import InvalidRequestError, UnavailableError
from app.domain.model import parameters as count
from app.domain.plan import ModelSummary, Plan, Rejection
from app.domain.search.budget import Budget
from app.domain.search.evaluate import Evaluation, with_best_sizes
from app.domain.search.explain import ladder_of, rungs_of, summary_of
from app.domain.search.objective import choose, nearest, pareto
from app.domain.search.pins import pin_warnings
from app.domain.search.plainer import needless_warnings, plainer_warnings
from app.domain.search.results import candidate_at
from app.domain.search.scan import Found, search
from app.domain.search.space import bound_shared_by
from app.domain.search.stretch import Question, pools_of, stretched
from app.domain.search.warn import warnings_of
from app.domain.search.warn.companions import companions_of
from app.domain.search.warn.search import search_warnings, sets_left_out, stopped_early
from app.domain.search.ways_out import ways_out_of
from app.domain.traffic.ideal import ideal_states_bytes, ideal_traffic_bytes

__all__ = ["Question", "make_plan"]

_TOO_LONG = "the search was stopped before its end, and nothing that was tried by then fits"
_SMALLER = "Pin a strategy, a degree of parallelism or the micro-batch to make it smaller"


def make_plan(question: Question, budget: Budget | None = None, *, brief: bool = False) -> Plan:
    """Answer a question.

    Args:
        budget: what it may cost; where that runs out, the answer is the best that was found and says what was left undone.
        brief: leave alternatives, ladder and ways out empty; every figure of the recommended candidate is the same without them.

    Raises:
        InvalidRequestError: the request makes no sense for any pool.
        UnavailableError: the budget ran out before anything that fits was found, or everything was judged.
    """
    started, budget = time.perf_counter(), budget or Budget()
    question = stretched(question, budget)
    tried = try_pools(question, budget)
    best, chosen = best_of(tried, question.objective)
    if chosen is None and budget.cut:
        raise UnavailableError(f"{_TOO_LONG}: {'; '.join(budget.stopped)}. {_SMALLER}")
    index = nearest(best.table) if chosen is None else chosen
    alternatives = [] if chosen is None or brief else pareto(best.table, index)
    rungs = [] if brief else rungs_of(best.table, index)
    evaluation, places = best.show([index, *alternatives, *(candidate for _, candidate in rungs)])
    place = with_best_sizes(evaluation, places[0])
    places = [place if there == places[0] else there for there in places]
    recommended = candidate_at(evaluation, place)
    rejected: Counter[str] = Counter()
    for found in tried:
        rejected.update(found.table.rejected)
    trainable, ranks = evaluation.numbers.trainable, int(evaluation.columns.zero_ranks[place])
    shortfall = max(0, round(float(evaluation.over_bytes[place]))) if chosen is None else 0
    return Plan(
        verdict=recommended.verdict,
        summary=summary_of(evaluation, recommended, shortfall),
        model=model_summary(evaluation),
        recommended=recommended,
        ideal_states_bytes=ideal_states_bytes(trainable, ranks),
        ideal_traffic_bytes=ideal_traffic_bytes(trainable, ranks),
        alternatives=tuple(candidate_at(evaluation, i) for i in places[1 : 1 + len(alternatives)]),
        ladder=ladder_of(rungs, evaluation, places[1 + len(alternatives) :], place),
        rejected=tuple(Rejection(reason=r, count=n) for r, n in rejected.most_common()),
        candidates=sum(len(found.table) for found in tried),
        feasible=sum(int(found.table.fits.sum()) for found in tried),
        elapsed_ms=(time.perf_counter() - started) * 1000,
        warnings=(
            *warnings_of(evaluation, place, recommended, question.constraints, question.pools),
            *search_warnings(best, chosen, tuple(dict.fromkeys(said for found in tried for said in found.space.narrowed))),
            *sets_left_out(question.pools),
            *pin_warnings(best, chosen, recommended, question.objective, budget),
            *plainer_warnings(best, chosen, recommended),
            *needless_warnings(best, chosen),
            *stopped_early(budget.stopped),
        ),
        ways_out=ways_out_of(evaluation, question.constraints, budget) if chosen is None and not brief else (),
        shortfall_bytes=shortfall,
        companions=companions_of(evaluation, recommended) if evaluation.setup.companions else (),
    )


def model_summary(evaluation: Evaluation) -> ModelSummary:
    """The model as counted."""
    model, numbers = evaluation.setup.model, evaluation.numbers
    return ModelSummary(
        name=model.name, total_params=numbers.total, active_params=count.active_params(model) if count.is_moe(model) else None,
        trainable_params=numbers.trainable, counted_by=f"family {model.family}", inferred=model.inferred,
        kind=model.kind,
    )  # fmt: skip


def try_pools(question: Question, budget: Budget) -> list[Found]:
    """Every pool choice searched; choices the request cannot run on are left out unless none can. They share the bound of a search."""
    found, refusals = list[Found](), list[InvalidRequestError]()
    choices = pools_of(question, budget)
    for number, pool in enumerate(choices):
        if found and not budget.go_on():
            budget.stop(f"{number} of {len(choices)} sets of pools were tried, those of most pools first", cut=True)
            break
        try:
            setup = replace(question.setup, pool=pool)
            found.append(search(setup, question.constraints, limit=bound_shared_by(len(choices)), budget=budget))
        except InvalidRequestError as refusal:
            refusals.append(refusal)
    if not found:
        raise refusals[0]
    return found


def best_of(tried: Sequence[Found], objective: str) -> tuple[Found, int | None]:
    """The pool whose choice is best, and that choice: fewest devices for ``fewest_gpus``, most tokens/s otherwise."""
    choices = [(found, i) for found in tried if (i := choose(found.table, objective)) is not None]
    if not choices:
        return min(tried, key=lambda found: float(found.table.over_bytes[nearest(found.table)])), None
    if objective == "fewest_gpus":
        return min(choices, key=lambda c: (c[0].setup.pool.world_size, -float(c[0].table.tokens_per_s[c[1]])))

    def merit(choice: tuple[Found, int]) -> tuple[bool, bool, float]:
        table, index = choice[0].table, choice[1]
        return bool(table.written[index]), bool(table.safe[index]), float(table.tokens_per_s[index])

    return max(choices, key=merit)
