"""One diagnosis: the log read, the run planned as it was, the cause found, and remedies computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.domain.errors import InvalidRequestError
from app.ingest.hub import Hub
from app.ingest.logs import LogFacts, read_log
from app.services.diagnose import on_gpu, on_host, other, too_slow
from app.services.diagnose.asked import DiagnoseIn, MeasuredIn, PartialRequest
from app.services.diagnose.case import Case
from app.services.diagnose.ran import Judge, local, run_of
from app.services.diagnose.result import Diagnosis
from app.services.effort import EFFORT


def diagnose(question: DiagnoseIn, hub: Hub | None = None) -> Diagnosis:
    """Say why a run failed or was slow, and what helps.

    Args:
        question: a log or a measurement, and what is known of the request.
        hub: where models named by ``hf_id`` are fetched from; None where that is switched off.

    Raises:
        InvalidRequestError: there is neither log nor measurement, or the request makes no sense.
        UnavailableError: the hub does not answer, or too many large searches are running.
    """
    measured = question.measured
    if not question.text.strip() and measured.peak_bytes is None and measured.step_s is None:
        hint = "paste the end of the log, or give measured.peak_bytes or measured.step_s"
        raise InvalidRequestError.at("text", msg="there is neither a log nor a measurement", hint=hint)
    facts = _with_measured(read_log(question.text), measured)
    asked = local(question.request or PartialRequest(), hub)
    with EFFORT.budget() as budget:
        judge = Judge(budget)
        ran = run_of(asked, facts, judge) if asked.model is not None else None
        case = Case(facts=facts, measured=measured, asked=asked, ran=ran, judge=judge)
        return replace(_by_kind(case), read=_read(facts))


_FULL_FRAC = 0.9
"""Share of a node's memory from which it, and not the GPU, is what is short."""


def _by_kind(case: Case) -> Diagnosis:
    """What ended the run comes before what only slowed it."""
    events, gpu, host = case.facts.events, case.facts.gpu, case.facts.host
    if "pin_failed" in events and gpu.requested is None:  # CUDA calls host memory that it cannot pin "out of memory" as well
        return on_host.killed(case)
    if "gpu_oom" in events:
        return on_gpu.out_of_memory(case)
    if {"host_killed", "host_oom", "pin_failed"} & set(events):
        return on_host.killed(case)
    if "disk_full" in events:
        return other.disk_full(case)
    if "batch_mismatch" in events:
        return other.batch_mismatch(case)
    if "collective_timeout" in events:
        return other.collective_timeout(case)
    if case.measured.peak_bytes is None and (case.facts.pace.known or case.measured.step_s is not None):
        return too_slow.slow_step(case)
    full = bool(host.used and host.capacity and host.used >= _FULL_FRAC * host.capacity)
    if not full and (gpu.peak is not None or gpu.allocated is not None):
        return on_gpu.peak(case)
    if host.used is not None:
        return on_host.killed(case)
    if case.facts.hints and case.facts.phase:
        return on_gpu.out_of_memory(case)
    return other.nothing(case)


def _with_measured(facts: LogFacts, measured: MeasuredIn) -> LogFacts:
    if measured.peak_bytes is None:
        return facts
    return replace(facts, gpu=replace(facts.gpu, peak=measured.peak_bytes, peak_counter=measured.counter))


def _read(facts: LogFacts) -> dict[str, Any]:
    """What was read from the text, so that a person can see whether it was read rightly."""
    gpu, host, pace = facts.gpu, facts.host, facts.pace
    found: dict[str, Any] = {
        "requested_bytes": gpu.requested, "capacity_bytes": gpu.capacity, "free_bytes": gpu.free, "allocated_bytes": gpu.allocated,
        "idle_bytes": gpu.idle, "peak_bytes": gpu.peak, "host_used_bytes": host.used, "host_capacity_bytes": host.capacity,
        "process_bytes": host.process, "step_s": pace.step_s, "tokens_per_s": pace.tokens_per_s, "samples_per_s": pace.samples_per_s,
        "phase": facts.phase, "strategy": facts.strategy, "line": facts.said or pace.quoted or None,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None} | ({"events": list(facts.events)} if facts.events else {})
