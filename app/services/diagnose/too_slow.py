"""Answers about the time of a step."""

from __future__ import annotations

from app.domain.units import format_number
from app.services.diagnose import missing, slow
from app.services.diagnose.case import Case, expected_of
from app.services.diagnose.result import Diagnosis
from app.services.diagnose.variants import speed_variants, tried

_MOST_USELESS = 8
_WANTED = ("model", "cluster", "strategy", "seq_len")


def slow_step(case: Case) -> Diagnosis:
    """A step that takes long: what it is expected to take, what binds it, and what is faster."""
    ran = case.ran
    if ran is None or not case.complete:
        return _alone(case)
    reported = slow.reported_of(case.facts.pace, case.measured.step_s, ran.candidate)
    first = case.asked.cluster.pools[0] if case.asked.cluster else None
    network_known = first is not None and (first.inter_node_gbit_per_s is not None or first.instance is not None)
    expected = ran.candidate.time.step_s
    ran, note = (ran, "") if network_known or reported is None else slow.on_real_network(ran, case.judge, reported)
    parts = slow.parts_of(ran)
    binds = slow.binding(parts, late=slow.is_late(ran, reported))
    remedies, useless = slow.judged(tried(ran, case.judge, speed_variants(ran)), ran)
    off = abs(reported / ran.candidate.time.step_s - 1) if reported else 1.0  # of the network that explains it, where one does
    return Diagnosis(
        cause=slow.cause_of(binds, expected, reported, explained=bool(note)),
        device="none",
        moment=binds.moment,
        tensor=None,
        confidence_frac=0.8 if off < 0.5 else 0.5,
        remedies=tuple(remedies),
        would_not_help=tuple(useless[:_MOST_USELESS]),
        missing=(
            *missing.about_speed(ran.knows, nodes=ran.candidate.settings.nodes, network_known=network_known),
            *missing.about_request(case.asked, ran.knows, _WANTED),
        ),
        notes=(*([note] if note else slow.notes_of(binds, ran, reported)), *ran.assumed),
        expected=expected_of(ran),
        slowness=slow.slowness_of(parts, binds, expected, reported),
    )


def _alone(case: Case) -> Diagnosis:
    pace = case.facts.pace
    step = case.measured.step_s if case.measured.step_s is not None else pace.step_s
    said = f"A step takes {format_number(step)} s" if step else "The log tells a rate"
    known = {name for name in ("model", "cluster") if getattr(case.asked, name) is not None}
    return Diagnosis(
        cause=f"{said}; whether that is slow, and what binds it, follows from the model and the devices.", device="none", moment=None,
        tensor=None,
        confidence_frac=0.0, missing=tuple(missing.about_request(case.asked, frozenset(known), _WANTED)),
    )  # fmt: skip
