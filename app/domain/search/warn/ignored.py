"""Requests that the chosen framework, or the file written for it, does not carry out."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.ledger import SPLIT_BY_SEQUENCE
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.base import warning
from app.domain.units import format_gib


def ignored_warnings(evaluation: Evaluation, candidate: Candidate, constraints: Constraints) -> Iterator[PlanWarning]:
    """Offload a stage ignores, activation offload with nothing to hide behind, and what no file does."""
    yield from _offload(candidate, constraints)
    yield from _activation_offload(candidate)
    yield from _not_in_script(evaluation)
    yield from _tensor_script(candidate)


def _offload(candidate: Candidate, constraints: Constraints) -> Iterator[PlanWarning]:
    settings = candidate.settings
    if settings.framework != "deepspeed" or settings.strategy == "zero3":
        return
    if constraints.offload_parameters not in (None, "none"):
        yield warning(
            "offload_parameters_ignored",
            f"DeepSpeed reads offload_param only at stage 3; with {settings.strategy} the parameters stay on the GPU and nothing says so.",
            "constraints.offload_parameters",
            "Choose strategy zero3, or drop parameter offload; this answer counts them on the GPU.",
        )
    if constraints.offload_optimizer == "nvme":
        yield warning(
            "nvme_becomes_cpu", "Below stage 3 DeepSpeed silently turns NVMe optimizer offload into CPU offload.",
            "constraints.offload_optimizer", "Choose strategy zero3 for NVMe, or write cpu; this answer counts host memory.",
        )  # fmt: skip


def _tensor_script(candidate: Candidate) -> Iterator[PlanWarning]:
    """What FSDP2's script keeps whole on every tensor rank, although the figures split it."""
    settings, gpu = candidate.settings, candidate.gpu
    if settings.framework != "fsdp2" or settings.tensor_parallel == 1:
        return
    split = sum(t.value for t in gpu.terms if t.name in SPLIT_BY_SEQUENCE)
    more = split * (settings.tensor_parallel - 1)
    enough = gpu.needed_bytes + more <= gpu.capacity_bytes
    yield warning(
        "tensor_script_keeps_more",
        "The figures split embedding, head, norms and logits over the tensor ranks, as sequence and loss parallelism do. fsdp2_train.py "
        f"splits the matrices of the blocks only: it needs up to ({settings.tensor_parallel} - 1) × {format_gib(split)} = "
        f"{format_gib(more)} more on each GPU, which {'is there' if enough else 'is more than is left'}.",
        "constraints.tensor_parallel",
        "Use a trainer that applies sequence and loss parallelism (torchtitan), tensor_parallel 1, or a fused loss.",
        "info" if enough else "warning",
    )


def _activation_offload(candidate: Candidate) -> Iterator[PlanWarning]:
    settings = candidate.settings
    if not settings.activation_offload or settings.activation_checkpointing != "none":
        return
    moved = sum(term.value for term in candidate.host.terms if term.category == "activations")
    only = " accelerate leaves the setting out: it offloads checkpoints only." if settings.framework == "fsdp2" else ""
    yield warning(
        "activation_offload_uncheckpointed",
        f"Without checkpointing every tensor a block saves goes to the host and back in each micro-step, {format_gib(moved)} on each node, "
        f"instead of one input a block.{only}",
        "training.activation_offload",
        "Set activation_checkpointing full, or drop activation_offload.",
    )


def _not_in_script(evaluation: Evaluation) -> Iterator[PlanWarning]:
    recipe = evaluation.setup.recipe
    if recipe.tiled_mlp:
        yield warning(
            "not_in_script",
            "The figures count a feed-forward computed in tiles of the sequence; the training scripts written here do not tile it.",
            "training.tiled_mlp",
            "Replace the feed-forward with DeepSpeed's TiledMLP in your script, or set tiled_mlp false.",
        )
    if recipe.ema:
        yield warning(
            "not_in_script",
            "The figures count an averaged copy of the weights; the training scripts written here do not keep one.",
            "training.ema",
            "Keep it with torch._foreach_lerp_ over the local shards (AveragedModel copies the model, which fully_shard refuses).",
        )
