"""Answers about the memory of a GPU: one that ran out of it, and one whose peak was measured."""

from __future__ import annotations

from typing import Any

from app.domain.diagnose.matching import Match
from app.domain.units import format_gib
from app.services.diagnose import bare, gpu, missing
from app.services.diagnose.case import Case, expected_of
from app.services.diagnose.ran import Ran, run_of
from app.services.diagnose.result import Diagnosis, NamedTensor, Remedy
from app.services.diagnose.variants import memory_variants, tried

_MOST_OTHERS, _MOST_USELESS = 4, 8
_SURE = 0.4
"""Confidence in a tensor from which the run is taken to be as it gives away."""
_WANTED = ("model", "cluster", "strategy", "micro_batch", "seq_len", "activation_checkpointing")


def out_of_memory(case: Case) -> Diagnosis:
    """A GPU that could not give what was asked of it."""
    if case.ran is None:
        return _alone(case)
    found = gpu.matches_of(case.facts, case.ran)
    ran = _as_it_ran(case, case.ran, found)
    not_in_effect = case.ran.situation.offloads and not ran.situation.offloads
    tensor = (
        gpu.named(found) or bare.tensor_of_size(case.facts) or gpu.by_stack(case.facts, ran) or bare.tensor_of_stack(case.facts, case.ranks)
    )
    moment: Any = case.facts.phase or (found[0].moment if tensor and found else None)
    if not case.complete:
        return _alone(case, tensor, found)
    need = gpu.need_of(case.facts.gpu, ran)
    remedies, useless = gpu.judged(tried(ran, case.judge, memory_variants(ran)), ran, need)
    return Diagnosis(
        cause=_cause(case, tensor, need, moment),
        device="gpu",
        moment=moment or gpu.moment_of(ran.candidate.gpu.peak_moment),
        tensor=tensor or _not_named(case),
        confidence_frac=tensor.confidence_frac if tensor else 0.0,
        remedies=(*_segments(case), *remedies),
        would_not_help=tuple(useless[:_MOST_USELESS]),
        missing=(*missing.about_gpu(case.facts), *missing.about_request(case.asked, ran.knows, _WANTED)),
        notes=(*([_NOT_IN_EFFECT] if not_in_effect else []), *_notes(case, ran, need)),
        others=tuple(gpu.tensor_of(other) for other in found[1 : 1 + _MOST_OTHERS]),
        expected=expected_of(ran),
    )


def _as_it_ran(case: Case, ran: Ran, found: tuple[Match, ...]) -> Ran:
    """The run with what its tensor gives away: the micro-batch, where nobody said one; that an offload was not in effect."""
    if not found or found[0].confidence_frac < _SURE:
        return ran
    batch, asked = found[0].tensor.batch, case.asked
    if found[0].tensor.category == "optimizer_states" and ran.situation.offloads:
        pins = asked.constraints.model_copy(update={"offload_optimizer": "none", "offload_parameters": "none"})
        asked = asked.model_copy(update={"constraints": pins})
    elif batch is None or batch == 1:
        return ran
    return run_of(asked, case.facts, case.judge, batch)


def _alone(case: Case, tensor: NamedTensor | None = None, found: tuple[Match, ...] = ()) -> Diagnosis:
    """What the log says without the planner, as model or devices are missing."""
    facts = case.facts
    tensor = tensor or bare.tensor_of_size(facts) or bare.tensor_of_stack(facts, case.ranks)
    knows = case.ran.knows if case.ran else frozenset[str]()
    known = {name for name in ("cluster",) if case.asked.cluster is not None} | knows
    given = known | {name for name in ("micro_batch", "activation_checkpointing") if getattr(case.asked.training, name) is not None}
    given |= ({"strategy"} if case.asked.constraints.strategy else set()) | ({"seq_len"} if case.asked.knows_length else set())
    idle = gpu.fragmentation(facts.gpu)
    moment: Any = facts.phase or (found[0].moment if found else None)
    return Diagnosis(
        cause=bare.cause_of(facts, tensor), device="gpu", moment=moment,

        tensor=tensor or _not_named(case), confidence_frac=tensor.confidence_frac if tensor else 0.0,
        remedies=(*([idle] if idle else []), *bare.remedies_of(facts, case.asked)),
        missing=(*missing.about_gpu(facts), *missing.about_request(case.asked, frozenset(given), _WANTED)),
        notes=tuple(gpu.shortage_notes(facts.gpu)), others=tuple(gpu.tensor_of(other) for other in found[1 : 1 + _MOST_OTHERS]),
    )  # fmt: skip


def _not_named(case: Case) -> NamedTensor | None:
    requested = case.facts.gpu.requested
    if requested is None:
        return None
    return NamedTensor(name="not identified", bytes=requested, arithmetic="no allocation of this setup has this size within 3 %")


def _segments(case: Case) -> list[Remedy]:
    idle = gpu.fragmentation(case.facts.gpu)
    return [idle] if idle else []


def _cause(case: Case, tensor: NamedTensor | None, need: gpu.Need, moment: str | None) -> str:
    sentence = bare.cause_of(case.facts, tensor).rstrip(".")
    if case.facts.phase is None and moment:
        sentence = sentence.replace("The GPU ran out of memory", f"The GPU ran out of memory {bare.when(moment)}", 1)
    by = "the log" if need.by_log else "the plan"
    return f"{sentence}; by {by} the run needs {format_gib(need.needed)} where {format_gib(need.usable)} may be used."


_NOT_IN_EFFECT = (
    "This tensor belongs on the host with the offload that the request names: the offload is not in effect. Check that offload_optimizer "
    "stands inside zero_optimization, that its device is cpu, and that the launcher passes this file."
)


def _notes(case: Case, ran: Ran, need: gpu.Need) -> list[str]:
    notes = gpu.shortage_notes(case.facts.gpu)
    predicted = ran.candidate.gpu
    if need.by_log and need.needed > 1.15 * predicted.needed_bytes:
        notes.append(
            f"The plan of the request as given needs {format_gib(predicted.needed_bytes)} only: something it does not say takes the rest "
            "(longer sequences, a larger micro-batch, no checkpointing, another process, weights loaded in fp32)."
        )
    largest = sorted(predicted.terms, key=lambda term: -term.value)[:2]
    said = " and ".join(f"{term.name} {format_gib(term.value)}" for term in largest)
    notes.append(f"Most of the peak, at {predicted.peak_moment}, is {said}.")
    return [*notes, *ran.assumed]


def peak(case: Case) -> Diagnosis:
    """A peak that was measured, against the plan's: which term is the largest, and what makes it smaller."""
    facts = case.facts
    measured = facts.gpu.peak or facts.gpu.allocated or 0
    if case.ran is None or not case.complete:
        return Diagnosis(
            cause=f"The GPU held {format_gib(measured)} at its peak; which tensors that is follows from the model and the devices.",
            device="gpu", moment=facts.phase, tensor=None, confidence_frac=0.0, notes=tuple(gpu.shortage_notes(facts.gpu)),

            remedies=tuple(_segments(case)),
            missing=tuple(missing.about_request(case.asked, case.ran.knows if case.ran else frozenset(), _WANTED)),
        )  # fmt: skip
    ran, predicted = case.ran, case.ran.candidate.gpu
    planned = {"allocated": predicted.peak_allocated_bytes, "reserved": predicted.peak_reserved_bytes, "device": predicted.device_bytes}
    there = planned[facts.gpu.peak_counter]
    largest = max(predicted.terms, key=lambda term: term.value)
    need = gpu.need_of(facts.gpu, ran)
    remedies, useless = gpu.judged(tried(ran, case.judge, memory_variants(ran)), ran, need)
    more = f"{format_gib(abs(measured - there))} {'more' if measured > there else 'less'} than planned"
    low, high = predicted.interval_90_bytes
    surely = 0.8 if low <= measured <= high else 0.4
    return Diagnosis(
        cause=f"The peak of {format_gib(measured)} {facts.gpu.peak_counter} is {more}, {format_gib(there)}; most of it is {largest.name}.",
        device="gpu", moment=gpu.moment_of(predicted.peak_moment),
        tensor=NamedTensor(name=largest.name, bytes=int(largest.value), arithmetic=largest.formula, category=largest.category,
                           confidence_frac=surely),
        confidence_frac=surely, remedies=(*_segments(case), *remedies), would_not_help=tuple(useless[:_MOST_USELESS]),
        missing=tuple(missing.about_request(case.asked, ran.knows, _WANTED)), notes=(*gpu.shortage_notes(facts.gpu), *ran.assumed),
        expected=expected_of(ran),
    )  # fmt: skip
