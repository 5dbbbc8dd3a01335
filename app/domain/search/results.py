"""Turn one row of an evaluated table into the Candidate that is shown: settings, ledgers, formulas, sureness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.domain.cards import entry
from app.domain.ledger import Ledger, Line, formula_of
from app.domain.memory.companions import label_of, moments_of
from app.domain.memory.moments import STEP
from app.domain.memory.sureness import fit_probability
from app.domain.plan import Candidate, CommunicationTerm, GpuMemory, MomentResult, MomentTerm, PoolMemory, StepTime, TermResult, Verdict
from app.domain.search.evaluate import Evaluation, host_capacity_bytes
from app.domain.search.settings import settings_at
from app.domain.speed.step import model_flops_utilisation


def candidate_at(evaluation: Evaluation, index: int) -> Candidate:
    """Everything about one candidate."""
    settings, step = settings_at(evaluation, index), _time(evaluation, index)
    usd = evaluation.setup.pool.node.usd_per_hour
    per_hour = usd * evaluation.setup.pool.nodes if usd is not None else None
    per_billion = per_hour / 3600 / step.tokens_per_s * 1e9 if per_hour is not None and step.tokens_per_s else None
    node = evaluation.setup.pool.node
    return Candidate(
        settings=settings, verdict=verdict_at(evaluation, index), gpu=_gpu(evaluation, index),
        host=_pool(evaluation.memory.host, evaluation.memory.host_bytes, host_capacity_bytes(evaluation.setup), index),
        nvme=_pool(evaluation.memory.nvme, evaluation.memory.nvme_bytes, node.nvme_bytes, index),
        communication=_communication(evaluation, index), time=step, usd_per_hour=per_hour, usd_per_billion_tokens=per_billion,
    )  # fmt: skip


def verdict_at(evaluation: Evaluation, index: int) -> Verdict:
    """``fits`` with a probability of at least 80 %, ``tight`` where it fits with less, else ``does_not_fit``."""
    if not evaluation.fits[index]:
        return "does_not_fit"
    return "fits" if evaluation.safe[index] else "tight"


def _gpu(evaluation: Evaluation, index: int) -> GpuMemory:
    memory, held = evaluation.memory, _alive(evaluation.memory.gpu, index)
    moments = moments_of(evaluation.setup)
    moment = moments[int(memory.moment[index])]
    alive = tuple(_term(line, index, value, share) for line, value, share in held.get(moment, ()))
    around = _alive(memory.overhead, index).get(STEP, ())  # alike at all moments
    # Runs publish one of torch's two counters: the interval reaches from the lower end of one to the upper end of the other.
    allocated, reserved, needed = float(memory.allocated[index]), float(memory.reserved[index]), float(memory.needed[index])
    low, high = (float(ratio[index]) for ratio in evaluation.verdicts.peak_ratios)
    return GpuMemory(
        terms=alive + tuple(_term(line, index, value, share) for line, value, share in around),
        moments=tuple(
            MomentResult(name=label_of(evaluation.setup, m), allocated_bytes=round(there), terms=_outline(held.get(m, ())))
            for m, there in zip(moments, memory.by_moment[:, index].tolist(), strict=True)
        ),
        peak_allocated_bytes=sum(int(t.value) for t in alive),
        peak_reserved_bytes=round(reserved),
        expandable_bytes=round(float(memory.expandable[index])),
        device_bytes=round(float(memory.device[index])),
        needed_bytes=round(needed),
        peak_moment=label_of(evaluation.setup, moment),
        capacity_bytes=evaluation.setup.capacity_bytes,
        fit_probability_frac=fit_probability(needed, evaluation.setup.pool.node.gpu.memory_bytes, low, high),
        interval_90_bytes=(round(allocated * low), round(reserved * high)),
        busiest_rank=busiest_rank(evaluation, index),
    )


def busiest_rank(evaluation: Evaluation, index: int) -> str:
    """Which GPU the memory is of, in words: ranks differ by pipeline stage only."""
    share, stages = evaluation.memory.busiest, int(evaluation.columns.pp[index])
    if stages == 1:
        return "all ranks are alike"
    stage, layers, flight = (int(column[index]) for column in (share.stage, share.layers, share.in_flight))
    ends = " and ".join(["the embedding"] * (stage == 0) + ["the head and the loss"] * (stage == stages - 1))
    held = f"{layers} block{'s' if layers > 1 else ''} and {ends}, {flight} micro-batch{'es' if flight > 1 else ''} in flight"
    return f"pipeline stage {stage + 1} of {stages}: {held}"


_Alive = Sequence[tuple[Line, float, float]]
"""Lines that hold something, with one candidate's bytes at a moment and the share of the line that is alive then."""


def _alive(ledger: Ledger, index: int) -> Mapping[str, _Alive]:
    """What one candidate holds, by moment."""
    found: dict[str, list[tuple[Line, float, float]]] = {}
    for line in ledger.lines:
        if not (whole := line.value.item(index)):
            continue
        for moment, share in line.alive.items():
            part = share if type(share) is float else entry(share, index)
            if (value := whole * part) >= 1:
                found.setdefault(moment, []).append((line, value, part))
    return found


def _outline(alive: _Alive) -> tuple[MomentTerm, ...]:
    return tuple([MomentTerm(line.card.title, line.category, float(round(value)), line.card.sureness) for line, value, _ in alive])


def _term(line: Line, index: int, value: float, share: float) -> TermResult:
    formula = formula_of(line, index)
    return TermResult(
        name=line.card.title,
        category=line.category,
        value=float(round(value)) if line.category not in _SECONDS else float(value),
        moment=line.lifetime,
        formula=formula if share == 1 else f"({formula}) × {share:.3g} of it alive at this moment",
        equation=line.card.equation,
        source=line.card.source,
        exactness=line.card.sureness,
        changes_it=line.card.changes_it,
    )


_SECONDS = frozenset({"compute", "optimizer", "offload"})


def _pool(ledger: Ledger, peak: Any, capacity: int | None, index: int) -> PoolMemory:
    lines = [_term(line, index, value, 1.0) for line in ledger.lines if (value := line.value.item(index)) >= 1]
    return PoolMemory(terms=tuple(lines), peak_bytes=round(float(peak[index])), capacity_bytes=capacity)


def _communication(evaluation: Evaluation, index: int) -> tuple[CommunicationTerm, ...]:
    traffic, out = evaluation.speed.traffic, []
    for flow, exposed in zip(traffic.flows, evaluation.speed.exposed, strict=True):
        line = traffic.ledger.lines[flow.line]
        if (sent := line.value.item(index)) < 1:
            continue
        out.append(
            CommunicationTerm(
                name=line.card.title,
                group_size=int(flow.ranks[index]),
                spans_nodes=bool(flow.spans[index]),
                bytes_per_step=round(sent),
                seconds=float(flow.seconds[index]),
                exposed_s=float(exposed[index]),
                formula=formula_of(line, index),
                source=line.card.source,
            )
        )
    return tuple(out)


def _time(evaluation: Evaluation, index: int) -> StepTime:
    speed, setup = evaluation.speed, evaluation.setup
    step, tokens = float(speed.step_s[index]), float(speed.tokens_per_step[index])
    per_s, world = tokens / step, int(evaluation.columns.world_size[index])
    frac = setup.rates.time_interval_frac
    ledgers = (speed.compute, speed.optimizer, speed.offload)
    terms = tuple(_term(line, index, value, 1.0) for ledger in ledgers for line in ledger.lines if (value := line.value.item(index)) > 0)
    return StepTime(
        step_s=step,
        compute_s=float(speed.compute_s[index]),
        exposed_communication_s=float(speed.exposed_communication_s[index]),
        optimizer_s=float(speed.optimizer_s[index]),
        offload_s=float(speed.offload_s[index]),
        tokens_per_s_per_gpu=per_s / world,
        tokens_per_s=per_s,
        mfu_frac=float(model_flops_utilisation(setup, np.asarray(per_s / world))),
        interval_90_s=(step * (1 - frac), step * (1 + frac)),
        terms=terms,
    )
