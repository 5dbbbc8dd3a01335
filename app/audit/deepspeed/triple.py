"""The three batch numbers, as DeepSpeed derives one from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.audit.deepspeed.view import AUTO, BATCH, HF, View
from app.audit.reading import at, whole

TRAIN, MICRO, ACCUM = BATCH
ARGUMENTS = {MICRO: "per_device_train_batch_size", ACCUM: "gradient_accumulation_steps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Triple:
    """Sequences of a step, of a micro-step on one rank, and micro-steps; None where unknown.

    Attributes:
        ranks: what the product is checked against.
        given: the numbers as written or filled in by the launcher.
    """

    train: int | None
    micro: int | None
    accum: int | None
    ranks: int | None
    given: Mapping[str, int]


def triple(view: View) -> Triple:
    """Derive the numbers that are left out, by DeepSpeed's integer divisions."""
    ranks, given = batch_ranks(view), {key: value for key in BATCH if (value := _given(view, key)) is not None}
    train, micro, accum = given.get(TRAIN), given.get(MICRO), given.get(ACCUM)
    open_ = {key for key in BATCH if at(view.config, key) == AUTO and key not in given}
    if micro is not None and accum is None and train is None and ACCUM not in open_ and TRAIN not in open_:
        accum = 1
    if train is not None and micro is None and accum is None and not open_:
        accum = 1
    if ranks and train is not None:
        if micro is not None and accum is None:
            accum = train // micro // ranks if micro > 0 else None
        elif accum is not None and micro is None:
            micro = train // ranks // accum if accum > 0 else None
    if ranks and train is None and micro is not None and accum is not None:
        train = micro * accum * ranks
    return Triple(train=train, micro=micro, accum=accum, ranks=ranks, given=given)


def batch_ranks(view: View) -> int | None:
    """Ranks the engine multiplies by: sequence ranks and pipeline stages share their data, AutoTP's are not divided out."""
    subject = view.subject
    if subject.ranks is None or (subject.degrees.tensor_parallel > 1 and not view.set("tensor_parallel.autotp_size")):
        return None
    shared = view.sequence_parallel * max(1, subject.degrees.pipeline_parallel)
    return subject.ranks // shared if subject.ranks % shared == 0 else None


def _given(view: View, key: str) -> int | None:
    raw: Any = at(view.config, key)
    if raw == AUTO and view.subject.launcher in HF:
        return _filled(view, key)
    return whole(raw)


def _filled(view: View, key: str) -> int | None:
    """What the launcher writes for "auto"; the product is left to the division."""
    if key in ARGUMENTS and (named := whole(view.subject.arguments.get(ARGUMENTS[key]))) is not None:
        return named
    training = view.subject.training
    if training is None:
        return None
    return {MICRO: training.micro_batch, ACCUM: training.grad_accum, TRAIN: None}[key]
