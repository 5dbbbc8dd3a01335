"""A node that ran out of memory: what filled it, at which moment, and what lets it run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.domain.diagnose.situation import in_words
from app.domain.memory.pinned import pinned_rounding_bytes
from app.domain.units import GIB, format_gib
from app.ingest.logs import LogFacts
from app.ingest.logs.host import EACH_RANK
from app.services.diagnose.ran import Ran
from app.services.diagnose.result import NamedTensor, Remedy
from app.services.diagnose.variants import MORE_HARDWARE, Tried, Variant, as_remedy, to_strategy

_SAFE_FRAC = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Bytes of one node that something takes, with the moment it takes them; ``key`` says what would free them."""

    key: str
    moment: Any
    tensor: NamedTensor
    why: str = ""

    @property
    def bytes(self) -> int:
        """Of the tensor."""
        return self.tensor.bytes or 0


def loads_of(ran: Ran) -> list[Load]:
    """What can fill a node, each as it is where nothing prevents it: loading in every rank, flattening, offloaded states, saving."""
    found = [*_loading(ran), *_states(ran)]
    return sorted(found, key=lambda load: -load.bytes)


def _loading(ran: Ran) -> Iterator[Load]:
    numbers, s = ran.resolved.question.setup.numbers, ran.candidate.settings
    total, ranks = numbers.total, min(s.world_size, s.gpus_per_node)
    for width, said in ((2, "16 bits"), (4, "fp32"), (8, "fp32, held twice while it is converted,")):
        arithmetic = f"P × {width} × {ranks} ranks of the node = {in_words(total)} × {width} × {ranks}"
        yield Load(key=f"load{width}", moment="load", tensor=NamedTensor(
            name=f"the whole model in {said} in every rank, while it is loaded", bytes=total * width * ranks, arithmetic=arithmetic,
            category="parameters"), why="zero.Init, or loading on one rank, was not in effect")  # fmt: skip
    if s.strategy in ("zero1", "zero2"):
        arithmetic = f"P × 4 × {ranks} ranks of the node = {in_words(numbers.trainable)} × 4 × {ranks}"
        yield Load(key="flatten", moment="initialisation", tensor=NamedTensor(
            name="an fp32 copy, or 16-bit weights and their flat copy, in every rank while the engine is built",
            bytes=numbers.trainable * 4 * ranks,
            arithmetic=arithmetic, category="parameters"))  # fmt: skip
    beside = ran.candidate.host.peak_bytes
    arithmetic = f"P × 2 + what is there = {in_words(total)} × 2 + {format_gib(beside)}"
    yield Load(key="save", moment="save", tensor=NamedTensor(
        name="the gathered 16-bit weights on rank 0, beside the states of the host", bytes=beside + total * 2, arithmetic=arithmetic,
        category="parameters"))  # fmt: skip


def _states(ran: Ran) -> Iterator[Load]:
    s = ran.candidate.settings
    if "none" == s.offload_optimizer == s.offload_parameters:
        return
    terms = {t.name: t for t in ran.candidate.host.terms}
    states = terms.get("optimizer states on the host")
    if states is None:
        return
    pinned = _pinned_more(ran)
    text = f"P × bytes / ranks × ranks of the node = {states.formula}" + (
        f" + {format_gib(pinned)} of rounding pinned blocks to powers of two" if pinned else ""
    )
    named = "optimizer states on the host" + (" with pinned blocks rounded up" if pinned else "")
    others = [
        t.value
        for t in terms.values()
        if t.name not in ("optimizer states on the host", "model while loading", "weights flattened on the host")
    ]
    if s.offload_parameters != "none":
        named += ", and the parameters"
        text += f" + {format_gib(sum(others))} of parameters and buffers"
    yield Load(key="states", moment="step", tensor=NamedTensor(
        name=named, bytes=round(states.value + sum(others) + pinned), arithmetic=text, category="optimizer_states"))  # fmt: skip


def _pinned_more(ran: Ran) -> int:
    """What torch's pinned allocator adds to DeepSpeed's flat blocks where no threshold of rounding is set. Bytes per node."""
    s, numbers = ran.candidate.settings, ran.resolved.question.setup.numbers
    if s.framework != "deepspeed" or s.offload_optimizer != "cpu":
        return 0
    shard = numbers.trainable / max(1, s.shard_group_size)
    blocks = (4.0, 4.0, 2.0) if s.strategy in ("zero1", "zero2") else (4.0, 2.0, *((2.0,) if s.offload_parameters == "cpu" else ()))
    return sum(pinned_rounding_bytes(shard * width) for width in blocks) * min(s.world_size, s.gpus_per_node)


def chosen(loads: list[Load], facts: LogFacts, ran: Ran) -> Load | None:
    """What filled the node: of the moment the log names, else the plan's own need where that is too much, else loading.

    Sizes that the log has of one process or of the node decide between the ways to load.
    """
    capacity, s = host_capacity(facts, ran), ran.candidate.settings
    phase = {"load": "load", "initialisation": "initialisation", "save": "save", "step": "step"}.get(facts.phase or "")
    by_key = {load.key: load for load in loads}
    if phase == "save" and "states" in by_key and (capacity is None or by_key["states"].bytes <= capacity):
        return by_key["save"]
    if phase == "save" and "states" in by_key:
        return replace(by_key["states"], moment="save")
    there = [load for load in loads if load.moment == phase] if phase else []
    if there:
        return _by_size(there, facts, s.gpus_per_node, capacity)
    states = by_key.get("states")
    if states is not None and facts.host.process is None:
        return states
    return _by_size([load for load in loads if load.key.startswith("load")], facts, s.gpus_per_node, capacity)


def _by_size(there: list[Load], facts: LogFacts, ranks: int, capacity: int | None) -> Load:
    """The one nearest to what a process held; else the smallest that is too much; else the largest."""
    if facts.host.process:
        held = facts.host.process * ranks
        return min(there, key=lambda load: abs(load.bytes - held))
    over = [load for load in there if capacity is not None and load.bytes > _SAFE_FRAC * capacity]
    return min(over, key=lambda load: load.bytes) if over else max(there, key=lambda load: load.bytes)


def host_capacity(facts: LogFacts, ran: Ran) -> int | None:
    """Bytes of one node: as the log says, else as the request does."""
    return facts.host.capacity or ran.resolved.question.setup.pool.node.host_memory_bytes


def host_variants(ran: Ran) -> Iterator[Variant]:
    """What can change the memory of a node, in no order."""
    s = ran.candidate.settings
    offloaded = s.offload_optimizer != "none"
    if s.offload_parameters != "none":
        yield Variant("parameters on the GPU", {"constraints.offload_parameters": "none"}, why="Frees 4 bytes a parameter of host memory.")
    if offloaded:
        none = {"constraints.offload_optimizer": "none", "constraints.offload_parameters": "none"}
        yield Variant("no offload", none)
        yield Variant("optimizer states on NVMe", to_strategy("zero3", offload_optimizer="nvme", offload_parameters=s.offload_parameters))
    if s.strategy != "zero3" and s.framework == "deepspeed":
        yield Variant("ZeRO-3", to_strategy("zero3", offload_optimizer=s.offload_optimizer))
    if s.framework == "deepspeed":
        yield Variant("FSDP2, loaded on rank 0", to_strategy("fsdp_full", offload_optimizer="none", offload_parameters="none"))
    if len(ran.request.cluster.pools) == 1:
        yield Variant(f"{2 * s.nodes} nodes instead of {s.nodes}", {"cluster.pools.0.nodes": 2 * s.nodes}, MORE_HARDWARE)


def by_hand(load: Load, ran: Ran, capacity: int | None) -> list[Remedy]:
    """Remedies that are no field of a request: who loads, and how blocks are pinned."""
    numbers, s = ran.resolved.question.setup.numbers, ran.candidate.settings
    found = []
    if load.key.startswith("load"):
        once = load.bytes // max(1, min(s.world_size, s.gpus_per_node))
        later = max(once, ran.candidate.host.peak_bytes)
        enough = capacity is None or later <= _SAFE_FRAC * capacity
        zero = s.framework == "deepspeed"
        label = "zero.Init: make the DeepSpeed arguments or config object before from_pretrained" if zero else "load on rank 0 only"
        settings = {"from_pretrained": "after TrainingArguments / HfDeepSpeedConfig (ZeRO-3)"} if zero else {
            "fsdp_cpu_ram_efficient_loading": True, "ACCELERATE_USE_FSDP": "true"}  # fmt: skip
        why = f"One copy a node instead of one a rank: {format_gib(once)}. Check with the resident memory of each rank (ps -o rss)."
        found.append(
            Remedy(label=label, settings=settings, frees_bytes=max(0, load.bytes - later), step_s_change=0.0, enough=enough, why=why)
        )
        if load.key in ("load4", "load8"):
            found.append(Remedy(label="load in 16 bits", settings={"torch_dtype": "bfloat16"}, frees_bytes=load.bytes // 2,
                                step_s_change=0.0,
                                enough=capacity is None or load.bytes // 2 <= _SAFE_FRAC * capacity,
                                why="2 bytes a parameter instead of 4."))  # fmt: skip
    more = _pinned_more(ran)
    if load.key in ("states", "save") and more:
        why = (
            "Pinned blocks are rounded up to powers of two; unpinned ones, or a threshold, keep their size. Transfers are slower unpinned."
        )
        enough = capacity is not None and load.bytes - more <= _SAFE_FRAC * capacity
        found.append(Remedy(label="pin_memory false, or a threshold of rounding", frees_bytes=more, step_s_change=None, enough=enough,
                            why=why,
                            settings={"offload_optimizer.pin_memory": False}))  # fmt: skip
    if load.key == "flatten":
        frees = load.bytes - numbers.total * 2
        found.append(Remedy(label="ZeRO-3 with zero.Init", settings={"constraints.strategy": "zero3"}, frees_bytes=max(0, frees),
                            step_s_change=None,
                            enough=capacity is None or numbers.total * 2 <= _SAFE_FRAC * capacity,
                            why="Nothing is whole on any rank."))  # fmt: skip
    return found


def judged(found: list[Tried], ran: Ran, load: Load, capacity: int | None) -> tuple[list[Remedy], list[str]]:
    """Remedies among the variants, and what does not help."""
    remedies, useless = [], []
    before = max(ran.candidate.host.peak_bytes, load.bytes if load.key == "states" else 0)
    for one in found:
        after = one.candidate
        frees = before - after.host.peak_bytes
        fits_gpu = after.gpu.needed_bytes <= after.gpu.capacity_bytes
        if load.key.startswith("load") or load.key == "flatten":
            if one.variant.kind == MORE_HARDWARE:
                useless.append(
                    f"More nodes: every rank of a node loads its own copy, {format_gib(load.bytes)} a node however many there are."
                )
            continue
        if frees <= 0:
            useless.append(f"{one.variant.label[:1].upper()}{one.variant.label[1:]}: it frees no host memory.")
        elif not fits_gpu:
            short = after.gpu.needed_bytes - after.gpu.capacity_bytes
            useless.append(f"{one.variant.label[:1].upper()}{one.variant.label[1:]}: each GPU would then be short of {format_gib(short)}.")
        else:
            enough = capacity is None or load.bytes - frees <= _SAFE_FRAC * capacity
            remedies.append(as_remedy(one, frees, enough=enough))
    return sorted(remedies, key=lambda r: (not r.enough, r.step_s_change or 0.0)), useless


def container_note(facts: LogFacts) -> str:
    """What to look at beside the arithmetic."""
    process = facts.host.process
    if process and facts.host.process_name not in ("", EACH_RANK) and facts.host.used and process > 0.5 * facts.host.used:
        held = f"One process, {facts.host.process_name}, held {process / GIB:.0f} GiB"
        return f"{held}: where it is no training rank (a driver, a data loader), look at its data path first; offload would add to it."
    return "The limit is that of the container or job, and of /dev/shm, where they are lower than the machine's memory."
