"""A GPU that ran out of memory: which tensor, when, how far it was from fitting, and what frees enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Any

from app.domain.diagnose.matching import POOL_BYTES, Clues, Match, match, tensors_of
from app.domain.units import GIB, MIB, format_gib, format_number
from app.ingest.logs import GpuNumbers, LogFacts
from app.services.diagnose.ran import Ran
from app.services.diagnose.result import NamedTensor, Remedy
from app.services.diagnose.variants import OTHER_TRAINING, SAME, Tried, as_remedy

SURE_ENOUGH = 0.15
"""Confidence from which a tensor is named."""
_LEAST_IDLE_FRAC, _NARROW_FRAC, _STAYS_IDLE_FRAC = 0.05, 0.01, 0.03
_MOMENTS = {
    "engine initialisation": "initialisation", "end of forward": "forward", "loss backward": "loss",
    "backward of the last block": "backward",
    "backward of the last block but one": "backward", "backward of the second block": "backward", "backward of the first block": "backward",
    "end of backward": "reduction", "optimizer step": "step",
}  # fmt: skip
"""Moments of the plan, in the words of the answer."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one GPU that the run needed, what it may use, and how many are missing; ``by_log`` where the log says more than the plan."""

    needed: int
    usable: int
    by_log: bool

    @property
    def lacking(self) -> int:
        """Bytes that have to be freed, the headroom included."""
        return max(0, self.needed - self.usable)


def moment_of(label: str) -> Any:
    """The answer's word for a moment of the plan, whichever model of the job it is of."""
    return _MOMENTS[label.rpartition(": ")[2]]


def matches_of(facts: LogFacts, ran: Ran) -> tuple[Match, ...]:
    """What the refused request can be; nothing where the log has no size, or one that stands for any small tensor."""
    gpu = facts.gpu
    if gpu.requested is None or gpu.requested in POOL_BYTES:
        return ()
    likely = _likely(gpu, ran) if facts.phase is None and ran.complete else None
    clues = Clues(requested=gpu.requested, rounding=gpu.rounding, moment=facts.phase, hints=facts.hints, likely=likely)
    return match(ran.situation, clues)


def _likely(gpu: GpuNumbers, ran: Ran) -> Mapping[str, float]:
    """How well each moment of the plan goes with what was allocated when the request came."""
    if gpu.allocated is None or gpu.requested is None:
        return {}
    held, found = gpu.allocated + gpu.requested, dict[str, float]()
    for moment in ran.candidate.gpu.moments:
        name, there = moment_of(moment.name), max(1, moment.allocated_bytes)
        found[name] = max(found.get(name, 0.0), exp(-abs(held - there) / (0.25 * there)))
    # A run that holds more or less than planned at every moment says less about when, not less about what.
    best = max(found.values())
    return {name: likelihood / best for name, likelihood in found.items()} | {"load": 0.05, "save": 0.05}


def need_of(gpu: GpuNumbers, ran: Ran) -> Need:
    """What the run needed at least: by the plan, or by the log where that says more."""
    predicted = ran.candidate.gpu
    capacity = gpu.capacity or round(ran.resolved.question.setup.pool.node.gpu.memory_bytes)
    usable = round(capacity * (1 - ran.request.headroom_frac))
    outside = predicted.device_bytes - predicted.peak_reserved_bytes
    said = 0
    if gpu.allocated is not None and gpu.requested is not None:
        said = gpu.allocated + gpu.requested + outside
    elif gpu.requested is not None:
        said = capacity + (gpu.short or 0)
    elif gpu.peak is not None:
        said = gpu.peak + (outside if gpu.peak_counter != "device" else 0)
    return Need(needed=max(said, predicted.needed_bytes), usable=usable, by_log=said > predicted.needed_bytes)


def named(found: tuple[Match, ...]) -> NamedTensor | None:
    """The likeliest allocation, where one is likely."""
    if not found or found[0].confidence_frac < SURE_ENOUGH:
        return None
    return tensor_of(found[0])


def tensor_of(found: Match) -> NamedTensor:
    """An allocation as it is shown."""
    tensor = found.tensor
    return NamedTensor(name=tensor.name, bytes=round(tensor.bytes), arithmetic=tensor.arithmetic, category=tensor.category,
                       confidence_frac=round(found.confidence_frac, 3))  # fmt: skip


def fragmentation(gpu: GpuNumbers) -> Remedy | None:
    """Expandable segments, where the allocator holds much that no tensor uses."""
    idle = gpu.idle
    if idle is None or gpu.allocated is None:
        return None
    total = gpu.capacity or gpu.allocated + idle
    if idle < _LEAST_IDLE_FRAC * total and idle < (gpu.requested or total):
        return None
    frees = round(idle - _STAYS_IDLE_FRAC * gpu.allocated)
    if frees <= 0:
        return None
    asked = gpu.requested or 0
    why = (
        f"{format_gib(idle)} are reserved and in no tensor; growing segments leave about {100 * _STAYS_IDLE_FRAC:.0f} % of the live bytes."
    )
    return Remedy(
        label="expandable segments", settings={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, frees_bytes=frees, step_s_change=0.0,
        enough=frees + (gpu.free or 0) >= asked > 0, why=why,
    )  # fmt: skip


def judged(found: list[Tried], ran: Ran, need: Need) -> tuple[list[Remedy], list[str]]:
    """Remedies, the cheapest that is enough first, and what would not help, with what it frees."""
    before, remedies, useless = ran.candidate.gpu.needed_bytes, list[tuple[tuple[Any, ...], Remedy]](), list[str]()
    for one in found:
        after = one.candidate
        frees = before - after.gpu.needed_bytes
        capacity = after.host.capacity_bytes
        on_host = capacity is not None and after.host.peak_bytes > max(capacity, ran.candidate.host.peak_bytes)
        enough = need.needed - frees <= need.usable and not on_host
        if on_host and one.variant.kind == SAME and frees > 0:
            useless.append(
                f"{_first(one)}: it would need {format_gib(after.host.peak_bytes)} of host memory, of {format_gib(capacity or 0)}."
            )
        elif frees <= 0 or (not enough and frees < 0.1 * need.lacking):
            if one.variant.kind != OTHER_TRAINING:
                freed = f"frees {format_gib(frees)}" if frees > 0 else "frees nothing"
                useless.append(f"{_first(one)}: it {freed} of the {format_gib(need.lacking)} that are missing.")
        else:
            key = (not enough, one.variant.kind, one.step_s_change if enough else -frees)
            remedies.append((key, as_remedy(one, frees, enough=enough)))
    return [remedy for _, remedy in sorted(remedies, key=lambda pair: pair[0])], useless


def _first(one: Tried) -> str:
    label = one.variant.label
    return label[:1].upper() + label[1:]


def shortage_notes(gpu: GpuNumbers) -> list[str]:
    """What the numbers of the message alone say: by how much it was short, and whether memory lay idle."""
    notes = []
    short = gpu.short
    if short:
        total = gpu.capacity
        share = f", {100 * short / total:.2g} % of the card" if total else ""
        notes.append(f"It was short by {_size(short)}{share}: {_size(gpu.requested or 0)} asked, {_size(gpu.free or 0)} free.")
        if total and short < _NARROW_FRAC * total:
            notes.append("A plan that is this near the limit is no fit: take real headroom, and do not shave off just what is missing.")
    if gpu.idle and (remedy := fragmentation(gpu)):
        notes.append(f"Fragmentation: {remedy.why}")
    if gpu.external:
        notes.append("The refusal came from outside torch's allocator (NCCL, cuBLAS or another process), which took what they needed.")
    return notes


def _size(size: int) -> str:
    return format_gib(size) if size >= GIB else f"{format_number(size / MIB)} MiB"


def by_stack(facts: LogFacts, ran: Ran) -> NamedTensor | None:
    """The allocation that the stack names, with the size it has in this setup, where the log has no size."""
    if facts.gpu.requested is not None or not facts.hints:
        return None
    clue = facts.hints[0]
    found = [tensor for tensor in tensors_of(ran.situation) if clue in tensor.hints and tensor.bytes >= 1]
    there = [tensor for tensor in found if facts.phase in (None, *tensor.moments)] or found
    if not there:
        return None
    likeliest = max(there, key=lambda tensor: tensor.prior)
    return NamedTensor(name=likeliest.name, bytes=round(likeliest.bytes), arithmetic=likeliest.arithmetic, category=likeliest.category,
                       confidence_frac=0.6)  # fmt: skip
