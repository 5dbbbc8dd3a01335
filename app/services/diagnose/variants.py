"""Changes of a run, one at a time, each evaluated by the planner: what it frees, what it costs, whether it is enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from app.domain.plan import Candidate
from app.services.diagnose.ran import Judge, Ran, on_request
from app.services.diagnose.result import Remedy
from app.services.request import AdapterIn

SAME, MORE_HARDWARE, OTHER_TRAINING = 0, 1, 2
"""What a change leaves as it was: the same training on the same devices, the same training, or neither."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of a request, with what kind it is and what to know of it."""

    label: str
    changes: dict[str, Any]
    kind: int = SAME
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """A variant as the planner sees it, and the seconds of as many tokens as one step of the run has, less those of the run."""

    variant: Variant
    candidate: Candidate
    step_s_change: float


def tried(ran: Ran, judge: Judge, variants: Iterable[Variant]) -> list[Tried]:
    """Variants that make sense, evaluated; those that change nothing are left out, and the rest once the time is up."""
    found = []
    for variant in variants:
        if not judge.budget.go_on():
            break
        candidate = judge.tried(on_request(ran, variant.changes))
        if candidate is not None:
            found.append(Tried(variant, candidate, step_change(ran.candidate, candidate)))
    return found


def step_change(before: Candidate, after: Candidate) -> float:
    """Seconds that as many tokens as one step has take longer, negative where they take less."""
    tokens = before.time.step_s * before.time.tokens_per_s
    return tokens / after.time.tokens_per_s - before.time.step_s


def memory_variants(ran: Ran) -> Iterator[Variant]:
    """What can free memory of a GPU, in no order."""
    training, s = ran.request.training, ran.candidate.settings
    yield from _batch_variants(ran)
    if not training.fused_loss:
        yield Variant("a fused or chunked loss", {"training.fused_loss": True}, why="The full logits never live.")
    if training.attention == "eager":
        yield Variant("flash attention", {"training.attention": "flash"}, why="The square score matrix never lives.")
    if s.activation_checkpointing != "full":
        yield Variant("full activation checkpointing", {"training.activation_checkpointing": "full"}, why="One tensor a block is kept.")
    elif not s.activation_offload:
        yield Variant("checkpoints kept in host memory", {"training.activation_offload": True})
    if not training.tiled_mlp:
        yield Variant("a tiled feed-forward", {"training.tiled_mlp": True}, why="One slice of the sequence is computed at a time.")
    yield from _stages(ran)
    yield from _offloads(ran)
    if s.sequence_parallel == 1 and s.world_size > 1:
        for degree in (2, 4, 8):
            if s.world_size % degree == 0:
                yield Variant(f"sequences split over {degree} ranks", {"constraints.sequence_parallel": degree})
    if len(ran.request.cluster.pools) == 1:
        yield Variant(f"{2 * s.nodes} nodes instead of {s.nodes}", {"cluster.pools.0.nodes": 2 * s.nodes}, MORE_HARDWARE)
    yield from _other_training(ran)


def _batch_variants(ran: Ran) -> Iterator[Variant]:
    s = ran.candidate.settings
    if s.micro_batch > 1:
        half = s.micro_batch // 2
        accum = s.grad_accum * s.micro_batch // half
        sizes = {half: accum, 1: s.grad_accum * s.micro_batch}
        for micro, steps in sizes.items():
            changes = {"training.micro_batch": micro, "training.grad_accum": None if ran.request.training.global_batch else steps}
            yield Variant(f"micro-batch {micro} with {steps} accumulated", changes, why="The batch of a step stays.")


_HIGHER = {"ddp": ("zero1", "zero2", "zero3", "fsdp_full"), "zero1": ("zero2", "zero3"), "zero2": ("zero3",),
           "fsdp_grad_op": ("fsdp_full",),
           "hsdp": ("fsdp_full",)}  # fmt: skip
NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp_full": "FSDP full shard", "hsdp": "HSDP",
         "fsdp_grad_op": "FSDP without resharding"}  # fmt: skip
FRAMEWORKS = {"zero1": "deepspeed", "zero2": "deepspeed", "zero3": "deepspeed", "fsdp_full": "fsdp2", "fsdp_grad_op": "fsdp2",
              "hsdp": "fsdp2",
              "ddp": "ddp"}  # fmt: skip


def to_strategy(name: str, **more: Any) -> dict[str, Any]:
    """Pins of another strategy; its framework and group follow it."""
    own = {"constraints.strategy": name, "constraints.framework": FRAMEWORKS[name], "constraints.shard_group_size": None}
    return own | {f"constraints.{key}": value for key, value in more.items()}


def _stages(ran: Ran) -> Iterator[Variant]:
    s = ran.candidate.settings
    if s.world_size == 1:
        return
    for name in _HIGHER.get(s.strategy, ()):
        yield Variant(NAMES[name], to_strategy(name))


def _offloads(ran: Ran) -> Iterator[Variant]:
    s = ran.candidate.settings
    if s.framework == "fsdp2" and s.offload_optimizer == "none":
        both = {"constraints.offload_optimizer": "cpu", "constraints.offload_parameters": "cpu"}
        yield Variant("offload to host memory (CPUOffloadPolicy)", both)
    if s.framework != "deepspeed" or s.strategy == "ddp":
        return
    if s.offload_optimizer == "none":
        yield Variant("optimizer offload to host memory", {"constraints.offload_optimizer": "cpu"})
        if s.strategy != "zero3":
            yield Variant("ZeRO-3 with optimizer offload", to_strategy("zero3", offload_optimizer="cpu"))
    if s.offload_parameters == "none":
        yield Variant(
            "ZeRO-3 with optimizer and parameter offload", to_strategy("zero3", offload_optimizer="cpu", offload_parameters="cpu")
        )


def _other_training(ran: Ran) -> Iterator[Variant]:
    training, s = ran.request.training, ran.candidate.settings
    if s.seq_len >= 1024:
        half = s.seq_len // 2
        yield Variant(f"sequences of {half:,} tokens", {"training.seq_len": half, "training.tokens_from": None}, OTHER_TRAINING)
    if training.optimizer == "adamw" and training.adapter is None:
        yield Variant(
            "8-bit Adam", {"training.optimizer": "adamw_8bit"}, OTHER_TRAINING, "Two bytes of moments a parameter instead of eight."
        )
    if training.adapter is None:
        yield Variant("a LoRA adapter", {"training.adapter": LORA, "training.trainable_params": None}, OTHER_TRAINING)


def speed_variants(ran: Ran) -> Iterator[Variant]:
    """What can make a step faster, in no order."""
    training, s = ran.request.training, ran.candidate.settings
    if s.world_size > 1:
        yield from _faster_strategies(ran)
    if "none" not in (s.offload_optimizer, s.offload_parameters) or s.offload_optimizer != "none":
        yield Variant("no offload", {"constraints.offload_optimizer": "none", "constraints.offload_parameters": "none"})
        if s.offload_parameters != "none":
            yield Variant("parameters on the GPU", {"constraints.offload_parameters": "none"})
    if training.global_batch is None:
        more = {"training.grad_accum": 4 * s.grad_accum}
        if s.nodes > 1 and s.strategy not in ("ddp", "zero1"):
            yield Variant(f"ZeRO-1 with {8 * s.grad_accum} micro-steps accumulated",
                          to_strategy("zero1") | {"training.grad_accum": 8 * s.grad_accum},
                          OTHER_TRAINING, "Gradients cross the network once a step.")  # fmt: skip
        yield Variant(f"{4 * s.grad_accum} micro-steps accumulated", more, OTHER_TRAINING, "Fewer steps for the same tokens.")
        for factor in (2, 4, 8):
            yield Variant(f"micro-batch {factor * s.micro_batch}", {"training.micro_batch": factor * s.micro_batch}, OTHER_TRAINING,
                          "More tokens for every gather.")  # fmt: skip
    elif s.grad_accum > 1:
        changes = {"training.micro_batch": s.micro_batch * s.grad_accum, "training.grad_accum": None}
        yield Variant(f"micro-batch {s.micro_batch * s.grad_accum} without accumulation", changes)
    if s.activation_checkpointing == "full":
        yield Variant("no checkpointing", {"training.activation_checkpointing": "none"}, why="Nothing is computed twice.")
        yield Variant("selective checkpointing", {"training.activation_checkpointing": "selective"})
    if training.attention == "eager":
        yield Variant("flash attention", {"training.attention": "flash"})
    if s.nodes > 1:
        one = {"cluster.pools.0.nodes": 1}
        yield Variant("one node", one, why="Fewer GPUs, and nothing crosses the network.")
        if s.offload_optimizer == "none" and s.framework == "deepspeed":
            yield Variant("one node with offload", one | {"constraints.offload_optimizer": "cpu"}, why="Nothing crosses the network.")


def _faster_strategies(ran: Ran) -> Iterator[Variant]:
    s, numbers = ran.candidate.settings, ran.resolved.question.setup.numbers
    for name in ("ddp", "zero1", "zero2", "fsdp_full", "fsdp_grad_op"):
        if name != s.strategy:
            yield Variant(NAMES[name], to_strategy(name, offload_optimizer="none", offload_parameters="none"))
    if s.nodes > 1:
        inside = s.gpus_per_node
        if s.strategy == "zero3" and s.hpz_group_size == 1:
            why = f"zero_hpz_partition_size {inside}: backward gathers stay inside the node."
            yield Variant(f"hpZ over the {inside} GPUs of a node", {"constraints.shard_group_size": inside}, why=why)
            if s.offload_optimizer == "none":
                both = {"constraints.shard_group_size": inside, "constraints.offload_optimizer": "cpu"}
                yield Variant(f"hpZ over the {inside} GPUs of a node, optimizer on the host", both, why=why)
        if s.strategy != "hsdp":
            grouped = to_strategy("hsdp", offload_optimizer="none", offload_parameters="none") | {"constraints.shard_group_size": inside}
            yield Variant(f"HSDP, sharded over the {inside} GPUs of a node", grouped)
    if numbers.expert and s.expert_parallel == 1:
        for degree in (8, 4, 2):
            yield Variant(f"experts spread over {degree} ranks", to_strategy("zero1") | {"constraints.expert_parallel": degree})


LORA = AdapterIn(kind="lora")


def as_remedy(one: Tried, frees: int, *, enough: bool) -> Remedy:
    """A tried variant as it is shown; ``None`` in settings unsets a pin and is left out."""
    settings = {path: value for path, value in one.variant.changes.items() if value is not None}
    settings |= {path: value.model_dump(exclude_unset=True) for path, value in settings.items() if hasattr(value, "model_dump")}
    return Remedy(label=one.variant.label, settings=settings, frees_bytes=frees, step_s_change=round(one.step_s_change, 4), enough=enough,
                  why=one.variant.why)  # fmt: skip
