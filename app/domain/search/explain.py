"""Words for the answer: the summary, and the ladder with a reason for every rung."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from app.domain.parallel.strategy import STRATEGIES
from app.domain.plan import Candidate, Rung, Settings
from app.domain.recipe.recipe import CHECKPOINTING_NAMES
from app.domain.search.constraints import AXES
from app.domain.search.evaluate import Evaluation, Table
from app.domain.search.results import verdict_at
from app.domain.setup import Array
from app.domain.units import format_gib, format_number

_VERDICT_WORDS = {"fits": "Fits", "tight": "Tight", "does_not_fit": "Does not fit"}


def summary_of(evaluation: Evaluation, candidate: Candidate, shortfall_bytes: int) -> str:
    """One sentence a person can act on."""
    settings, gpu = candidate.settings, candidate.gpu
    how = describe(settings)
    used, there = format_gib(gpu.device_bytes), format_gib(gpu.capacity_bytes)
    if candidate.verdict == "does_not_fit":
        short = " and ".join(_short(candidate, shortfall_bytes)) or "disk on each node, of which none is known"
        return f"Does not fit: the nearest plan is {how}, which needs {short}."
    speed = format_number(candidate.time.tokens_per_s_per_gpu)
    spread = round(100 * evaluation.setup.rates.time_interval_frac)
    word = _VERDICT_WORDS[candidate.verdict]
    if gpu.device_bytes > gpu.capacity_bytes:
        used = f"{format_gib(gpu.needed_bytes)}, with the allocator's cache {used},"
    return f"{word}: {how}; {used} of {there} at its peak ({_peak(candidate)}), {speed} tokens/s per GPU ± {spread} %."


def _peak(candidate: Candidate) -> str:
    """When memory peaks, and on which pipeline stage where there are several."""
    moment, rank = candidate.gpu.peak_moment, candidate.gpu.busiest_rank
    return moment if candidate.settings.pipeline_parallel == 1 else f"{moment} on {rank.partition(':')[0]}"


def _short(candidate: Candidate, shortfall_bytes: int) -> Iterator[str]:
    """What is needed of each resource there is too little of, in words."""
    gpu = candidate.gpu
    if shortfall_bytes:
        needed, there = format_gib(gpu.capacity_bytes + shortfall_bytes), format_gib(gpu.capacity_bytes)
        yield f"{needed} of {there} at its peak ({_peak(candidate)}), short by {format_gib(shortfall_bytes)} on each GPU"
    for pool, words in ((candidate.host, "host memory"), (candidate.nvme, "disk")):
        if pool.capacity_bytes is not None and pool.peak_bytes > pool.capacity_bytes:
            most = max(pool.terms, key=lambda term: term.value)
            needed, there = format_gib(pool.peak_bytes), format_gib(pool.capacity_bytes)
            yield f"{needed} of {words} on each node, which has {there} for it (most of it {most.name})"


def describe(settings: Settings) -> str:
    """Settings in a phrase: strategy, batch, checkpointing, offload."""
    label = next(s.label for s in STRATEGIES if (s.name, s.framework) == (settings.strategy, settings.framework))
    parts = [f"{label} on {settings.world_size} GPU{'s' if settings.world_size > 1 else ''}"]
    if settings.strategy == "hsdp":
        parts.append(f"shard groups of {settings.shard_group_size}")
    if settings.hpz_group_size > 1:
        parts.append(f"hpZ groups of {settings.hpz_group_size}")
    for axis in AXES:
        if (degree := getattr(settings, axis)) > 1:
            parts.append(f"{axis.replace('_', ' ')} {degree}")
    quantised = [n for n, on in (("qwZ", settings.quantized_weights), ("qgZ", settings.quantized_gradients)) if on]
    if quantised:
        parts.append(f"ZeRO++ {' and '.join(quantised)}")
    parts.append(f"micro-batch {settings.micro_batch} × {settings.grad_accum} accumulation")
    if settings.activation_checkpointing != "none":
        parts.append(f"{settings.activation_checkpointing} checkpointing" + (" kept on the host" if settings.activation_offload else ""))
    share = "" if settings.offload_optimizer_ratio == 1 else f"{100 * settings.offload_optimizer_ratio:.3g} % of the "
    for what, where in ((f"{share}optimizer", settings.offload_optimizer), ("parameters", settings.offload_parameters)):
        if where != "none":
            parts.append(f"{what} offloaded to {where.upper()}")
    return ", ".join(parts)


def rungs_of(table: Table, chosen: int) -> list[tuple[str, int]]:
    """The ladder's rungs, simplest first, each with the candidate that stands for it: the chosen one, or its best.

    One rung for each strategy without and with offload on the plainest mesh, and one for each further axis of parallelism.
    """
    plain = np.ones(len(table), dtype=bool)
    axes: list[tuple[str, Array]] = []
    for name in ("tp", "sp", "pp", "ep"):
        degrees = getattr(table, name)
        wider = degrees > degrees.min()
        if wider.any():
            axes.append((AXIS_LABELS[name], wider & plain))
            plain &= ~wider
    rungs = []
    for offloaded in (False, True):
        members = np.flatnonzero(plain & (table.offloaded == offloaded))
        present = np.flatnonzero(np.bincount(table.row[members], minlength=len(STRATEGIES))).tolist()
        for number in sorted(present, key=lambda r: STRATEGIES[r].complexity):
            label = STRATEGIES[number].label + (" with offload" if offloaded else "")
            rungs.append((label, _best_of(table, members[table.row[members] == number], chosen)))
    return rungs + [(label, _best_of(table, np.flatnonzero(wider), chosen)) for label, wider in axes]


AXIS_LABELS = {"tp": "tensor parallelism", "sp": "sequence parallelism", "pp": "pipeline parallelism", "ep": "expert parallelism"}


def _best_of(table: Table, members: Array, chosen: int) -> int:
    if chosen in members:
        return chosen
    for kind in (table.safe, table.fits):
        fitting = members[kind[members]]
        if len(fitting):
            return int(fitting[np.argmax(table.tokens_per_s[fitting])])
    return int(members[np.argmin(table.over_bytes[members])])


def ladder_of(rungs: Sequence[tuple[str, int]], evaluation: Evaluation, places: Sequence[int], chosen: int) -> tuple[Rung, ...]:
    """The ladder in words, with a reason on every rung that was passed over.

    Args:
        rungs: labels and candidates.
        evaluation: what holds them; places: where each rung's candidate is in it, and chosen: where the recommended one is.
    """
    return tuple(_rung(label, evaluation, place, chosen) for (label, _), place in zip(rungs, places, strict=True))


def _rung(label: str, evaluation: Evaluation, index: int, chosen: int) -> Rung:
    c, strategy = evaluation.columns, STRATEGIES[int(evaluation.columns.row[index])]
    return Rung(
        label=label,
        verdict=verdict_at(evaluation, index),
        why_not="" if index == chosen else _why_not(evaluation, index, chosen),
        chosen=index == chosen,
        step_s=float(evaluation.speed.step_s[index]),
        device_bytes=round(float(evaluation.memory.device[index])),
        settings={
            "framework": strategy.framework,
            "strategy": strategy.name,
            "micro_batch": int(c.micro_batch[index]),
            "grad_accum": int(c.grad_accum[index]),
            "activation_checkpointing": CHECKPOINTING_NAMES[int(c.checkpointing[index])],
            "offload_optimizer": bool(c.offload_optimizer[index]),
            "offload_parameters": bool(c.offload_parameters[index]),
        }
        | {axis: int(getattr(c, column)[index]) for column, axis in zip(("tp", "pp", "sp", "ep"), AXES, strict=True)},
    )


def _why_not(evaluation: Evaluation, index: int, chosen: int) -> str:
    v = evaluation.verdicts
    if v.over_bytes[index] > 0:
        return f"needs {format_gib(float(v.over_bytes[index]))} more than each GPU has"
    if v.host_over_bytes[index] > 0:
        return f"needs {format_gib(float(v.host_over_bytes[index]))} more host memory than a node has"
    if v.nvme_over_bytes[index] > 0:
        return "needs more disk than a node has"
    if not v.fits[chosen]:
        return ""
    factor = float(evaluation.tokens_per_s[chosen] / evaluation.tokens_per_s[index])
    if factor > 1.005:
        return f"fits, {100 * (1 - 1 / factor):.0f} % slower" if factor < 2 else f"fits, {format_number(factor)}× slower"
    if v.safe[chosen] and not v.safe[index]:
        return "fits only with its margin used up"
    but = (
        "no training script that fits is written for it"
        if _unwritten(evaluation, index) > _unwritten(evaluation, chosen)
        else "more complex"
    )
    faster = 100 * (1 / factor - 1)
    return f"fits and is {faster:.0f} % faster, but {but}" if faster >= 1 else f"fits and is as fast, but {but}"


def _unwritten(evaluation: Evaluation, index: int) -> bool:
    return not evaluation.written[index]
