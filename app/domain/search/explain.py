"""Words for the answer: the summary, and the ladder with a reason for every rung."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from app.domain.parallel.strategy import STRATEGIES
from app.domain.plan import Candidate, Rung, Settings
from app.domain.recipe.recipe import CHECKPOINTING_NAMES
from app.domain.search.evaluate import Evaluation
from app.domain.search.results import verdict_at
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
    parts.append(f"micro-batch {settings.micro_batch} × {settings.grad_accum} accumulation")
    if settings.activation_checkpointing != "none":
        parts.append(f"{settings.activation_checkpointing} checkpointing" + (" kept on the host" if settings.activation_offload else ""))
    for what, where in (("optimizer", settings.offload_optimizer), ("parameters", settings.offload_parameters)):
        if where != "none":
            parts.append(f"{what} offloaded to {where.upper()}")
    return ", ".join(parts)


def ladder_of(evaluation: Evaluation, chosen: int) -> tuple[Rung, ...]:
    """One rung a strategy, simplest first: its best candidate, and why it was passed over."""
    rungs, rows = [], evaluation.columns.row
    offloaded = (evaluation.columns.offload_optimizer > 0) | (evaluation.columns.offload_parameters > 0)
    for number in sorted(set(rows.tolist()), key=lambda r: STRATEGIES[r].complexity):
        for with_offload in (False, True):
            members = np.flatnonzero((rows == number) & (offloaded == with_offload))
            if len(members):
                rungs.append(_rung(evaluation, members, chosen, with_offload=with_offload))
    rungs.sort(key=lambda r: bool(r.settings["offload_optimizer"] or r.settings["offload_parameters"]))
    return tuple(rungs)


def _rung(evaluation: Evaluation, members: Any, chosen: int, *, with_offload: bool) -> Rung:
    fitting = members[evaluation.safe[members]] if evaluation.safe[members].any() else members[evaluation.fits[members]]
    is_chosen = chosen in members
    if is_chosen:
        index = chosen
    elif len(fitting):
        index = int(fitting[np.argmax(evaluation.tokens_per_s[fitting])])
    else:
        index = int(members[np.argmin(evaluation.over_bytes[members])])
    c, strategy = evaluation.columns, STRATEGIES[int(evaluation.columns.row[index])]
    return Rung(
        label=strategy.label + (" with offload" if with_offload else ""),
        verdict=verdict_at(evaluation, index),
        why_not="" if is_chosen else _why_not(evaluation, index, chosen),
        chosen=is_chosen,
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
        },
    )


def _why_not(evaluation: Evaluation, index: int, chosen: int) -> str:
    over = float(evaluation.over_bytes[index])
    if over > 0:
        return f"needs {format_gib(over)} more than each GPU has"
    if evaluation.host_over_bytes[index] > 0:
        return f"needs {format_gib(float(evaluation.host_over_bytes[index]))} more host memory than a node has"
    if evaluation.nvme_over_bytes[index] > 0:
        return "needs more disk than a node has"
    if not evaluation.fits[chosen]:
        return ""
    factor = float(evaluation.tokens_per_s[chosen] / evaluation.tokens_per_s[index])
    if factor > 1.005:
        return f"fits, {100 * (1 - 1 / factor):.0f} % slower" if factor < 2 else f"fits, {format_number(factor)}× slower"
    if evaluation.safe[chosen] and not evaluation.safe[index]:
        return "fits only with its margin used up"
    faster = 100 * (1 / factor - 1)
    return f"fits and is {faster:.0f} % faster, but more complex" if faster >= 1 else "fits and is as fast, but more complex"
