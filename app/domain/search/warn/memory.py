"""What is said about memory: how near the limits a plan comes, and what would move them."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.memory.pinned import pinned_rounding_bytes
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.evaluate import HOST_SAFE_FRAC, Evaluation
from app.domain.search.warn.base import warning
from app.domain.units import format_gib

_ROUNDING_WORTH_SAYING = 0.05


def memory_warnings(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """Nearness to the limits, pinning, and the loss."""
    yield from _pinned(evaluation, candidate)
    yield from _tight(evaluation, candidate)
    if evaluation.setup.model.vocab_size and not evaluation.setup.recipe.fused_loss and candidate.gpu.peak_moment == "loss backward":
        yield warning(
            "fused_loss_helps",
            "The peak is at the loss: three fp32 copies of the logits. A fused loss never holds them.",
            "training.fused_loss",
            "Set fused_loss, with a kernel such as Liger's in the training script.",
            "info",
        )


def _tight(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    if candidate.verdict != "tight":
        return
    there, needed = evaluation.setup.pool.node.host_memory_bytes, candidate.host.peak_bytes
    assumed = evaluation.setup.pool.node.host_memory_assumed
    host = there is not None and needed > HOST_SAFE_FRAC * there
    if there is not None and host:
        yield warning(
            "host_tight",
            f"The node needs {format_gib(needed)} of {'an assumed' if assumed else 'its'} {format_gib(there)} of host memory, more than "
            f"{HOST_SAFE_FRAC:.0%}: data workers, the page cache and saving a checkpoint need the rest.",
            "cluster.pools.0.host_memory_gib",
            ("Give host_memory_gib to have it judged. " if assumed else "")
            + "Use more nodes, which divide what is offloaded, or offload less; a container's limit counts, not the machine's total.",
        )
    low, high = candidate.gpu.interval_90_bytes
    if high > candidate.gpu.capacity_bytes or not host:
        yield warning(
            "tight",
            f"The 90 % interval of the peak ({format_gib(low)} to {format_gib(high)} reserved) reaches past what is safe.",
            "headroom_frac",
            "Use a smaller micro-batch or full checkpointing, or watch the first steps.",
        )


def _pinned(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """What pinning would add on the host if the launch file did not switch rounding off."""
    settings, trained = candidate.settings, evaluation.numbers.trainable
    if settings.framework != "deepspeed" or settings.offload_optimizer != "cpu":
        return
    shard = trained / settings.shard_group_size
    # Stages 1 and 2 pin master, gradients and staging whole. Stage 3 pins gradients a tile at a time, and a flat buffer of them.
    tiles, left = divmod(shard, settings.sub_group_numel)
    whole = [4 * shard, 4 * shard, 2 * shard]
    extra_per_rank = (
        tiles * pinned_rounding_bytes(4 * settings.sub_group_numel) + sum(map(pinned_rounding_bytes, (4 * left, 2 * shard)))
        if settings.strategy == "zero3"
        else sum(map(pinned_rounding_bytes, whole))
    )
    extra = extra_per_rank * min(settings.world_size, settings.gpus_per_node)
    if extra > _ROUNDING_WORTH_SAYING * candidate.host.peak_bytes:
        yield warning(
            "pinned_rounding",
            f"Pinned blocks are rounded up to powers of two by default, which would take {format_gib(extra)} more on each node.",
            "constraints.offload_optimizer",
            "launch.sh switches the rounding off (pinned_max_cached_size_mb); keep that line if you start the job another way.",
            "info",
        )
