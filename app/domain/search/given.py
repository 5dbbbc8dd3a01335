"""One configuration as it is given: every size its file names is taken, none is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.domain.memory.peak import evaluate_memory
from app.domain.plan import Candidate
from app.domain.search.evaluate import Evaluation, complexity_of, evaluate, judge
from app.domain.search.objective import choose, nearest
from app.domain.search.results import candidate_at
from app.domain.search.sizes import USUAL_SIZES, Sized, takes_ratio, takes_sizes
from app.domain.search.stretch import Question
from app.domain.setup import Columns
from app.domain.speed.step import evaluate_speed


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSizes:
    """DeepSpeed's sizes as a file has them, in elements.

    Attributes:
        bucket, prefetch, persistence, reuse, sub_group: of its keys; None where unknown, which stands for the library's own.
        overlap_comm: whether gradients travel beside the backward pass.
        quantized_weights, quantized_gradients: ZeRO++.
        kept_frac: share of an offloaded optimizer that stays on the GPU, 1 − ``ratio``.
    """

    bucket: int | None = None
    prefetch: int | None = None
    persistence: int | None = None
    reuse: int | None = None
    sub_group: int | None = None
    overlap_comm: bool | None = None
    quantized_weights: bool = False
    quantized_gradients: bool = False
    kept_frac: float = 0.0


def given_candidate(question: Question, sizes: GivenSizes | None) -> Candidate:
    """What a pinned question costs with exactly these sizes, on its first pool.

    Args:
        question: with strategy, offload and recompute pinned. Where the batch is open it is what the planner would take.
        sizes: None for frameworks that have none.

    Raises:
        InvalidRequestError: the pins contradict each other, the model or the devices.
    """
    setup = replace(question.setup, pool=question.pools[0])
    searched = evaluate(setup, question.constraints)
    table = searched.table()
    chosen = choose(table, question.objective)
    place = nearest(table) if chosen is None else chosen
    if sizes is None:
        return candidate_at(searched, place)
    columns = _with(searched.columns.take(np.array([place])), sizes)
    memory = evaluate_memory(setup, searched.numbers, columns)
    speed = evaluate_speed(setup, searched.numbers, columns, memory.share)
    evaluation = Evaluation(
        setup=setup, numbers=searched.numbers, columns=columns, memory=memory, speed=speed,
        verdicts=judge(setup, question.constraints, columns, memory), tokens_per_s=speed.tokens_per_step / speed.step_s,
        complexity=complexity_of(columns), sized=Sized(1),
    )  # fmt: skip
    return candidate_at(evaluation, 0)


def _with(columns: Columns, sizes: GivenSizes) -> Columns:
    """The candidate with the file's sizes, where its strategy has any."""
    if not takes_sizes(columns)[0]:
        return columns
    values: dict[str, Any] = {
        name: np.full_like(columns.bucket, usual if (given := getattr(sizes, name)) is None else given)
        for name, usual in USUAL_SIZES.items()
    }
    if sizes.overlap_comm is not None:
        values["overlap_comm"] = np.full_like(columns.overlap_comm, int(sizes.overlap_comm))
    values["qwz"] = np.full_like(columns.qwz, int(sizes.quantized_weights))
    values["qgz"] = np.full_like(columns.qgz, int(sizes.quantized_gradients))
    if takes_ratio(columns)[0]:
        values["kept_frac"] = np.full(len(columns), sizes.kept_frac)
    return replace(columns, **values)
