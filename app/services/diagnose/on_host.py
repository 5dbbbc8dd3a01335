"""Answers about the memory of a node: a process that was killed, could not allocate or could not pin."""

from __future__ import annotations

from app.domain.units import format_gib
from app.ingest.logs.host import EACH_RANK
from app.services.diagnose import host, missing
from app.services.diagnose.case import Case, expected_of
from app.services.diagnose.result import Diagnosis, NamedTensor, Remedy
from app.services.diagnose.variants import tried

_MOST_USELESS = 8
_WANTED = ("model", "cluster", "strategy")


def killed(case: Case) -> Diagnosis:
    """A node that ran out of memory."""
    facts, ran = case.facts, case.ran
    if ran is None or not case.complete:
        return _alone(case)
    load, capacity = host.chosen(host.loads_of(ran), facts, ran), host.host_capacity(facts, ran)
    if load is None:
        return _alone(case)
    remedies, useless = host.judged(tried(ran, case.judge, host.host_variants(ran)), ran, load, capacity)
    remedies = sorted([*host.by_hand(load, ran, capacity), *remedies], key=lambda r: (not r.enough, r.step_s_change or 0.0))
    over = capacity is not None and load.bytes > 0.9 * capacity
    there = f", of {format_gib(capacity)} there" if capacity else ""
    how = "was killed for want of host memory" if "host_killed" in facts.events else "ran out of host memory"
    if not facts.events:
        how = "has nearly filled the host's memory"
    if "pin_failed" in facts.events:
        how = "could not pin host memory"
    why = f"; {load.why}" if load.why else ""
    surely = (0.85 if over else 0.5) if facts.phase or load.key == "states" else (0.65 if over else 0.3)
    return Diagnosis(
        cause=f"A process {how} {_WHEN[load.moment]}: {load.tensor.name} takes {format_gib(load.bytes)} a node{there}{why}.",
        device="host",
        moment=load.moment,
        tensor=NamedTensor(
            name=load.tensor.name,
            bytes=load.bytes,
            arithmetic=load.tensor.arithmetic,
            category=load.tensor.category,
            confidence_frac=surely,
        ),
        confidence_frac=surely,
        remedies=tuple(remedies),
        would_not_help=tuple(dict.fromkeys(useless))[:_MOST_USELESS],
        missing=(
            *missing.about_host(facts, capacity_known=capacity is not None),
            *missing.about_request(case.asked, ran.knows, _WANTED),
        ),
        notes=(host.container_note(facts), *_pins(case), *ran.assumed),
        others=tuple(other.tensor for other in host.loads_of(ran) if other.key != load.key)[:4],
        expected=expected_of(ran),
    )


_WHEN = {"load": "while the model was loaded", "initialisation": "while the engine was built", "step": "with its states in place",
         "save": "around saving"}  # fmt: skip


def _pins(case: Case) -> tuple[str, ...]:
    if "pin_failed" not in case.facts.events:
        return ()
    return ("Pinned memory is bounded by ulimit -l and by the container as well; pin_memory false does without it.",)


def _alone(case: Case) -> Diagnosis:
    """What the log says by itself."""
    facts, numbers = case.facts, case.facts.host
    tensor, used = None, ""
    if numbers.used and numbers.capacity:
        used = f": {format_gib(numbers.used)} of {format_gib(numbers.capacity)} were used"
    if numbers.process:
        share = f", {100 * numbers.process / numbers.used:.0f} % of what was used" if numbers.used else ""
        tensor = NamedTensor(name=f"memory of one process ({numbers.process_name or 'unnamed'})", bytes=numbers.process,
                             arithmetic=f"{format_gib(numbers.process)}{share}", confidence_frac=0.5)  # fmt: skip
    one = bool(numbers.process and numbers.process_name != EACH_RANK and numbers.used and numbers.process > 0.5 * numbers.used)
    useless = ("Offload to host memory: the host is what is full.",) if "pin_failed" not in facts.events else ()
    remedies = (Remedy(label="look at the data path of that process", settings={}, frees_bytes=None, step_s_change=None, enough=False,
                       why="One process that is no training rank holds most of it: data loader, rollout or driver."),
                       ) if one else ()  # fmt: skip
    held = f", most of it by {numbers.process_name or 'one process'}" if one else ""
    known = {name for name in ("model", "cluster") if getattr(case.asked, name) is not None}
    return Diagnosis(
        cause=f"A process ended for want of host memory{used}{held}; what filled it follows from the model and the devices.",
        device="host", moment=facts.phase, tensor=tensor, confidence_frac=0.5 if tensor else 0.3, remedies=remedies,
        would_not_help=useless,
        missing=(*missing.about_host(facts, capacity_known=numbers.capacity is not None),
                       *missing.about_request(case.asked, frozenset(known), _WANTED)),
        notes=(host.container_note(facts), *_pins(case)),
    )  # fmt: skip
