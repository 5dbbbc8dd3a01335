"""Warnings: what the frameworks will really do with a request that suggests something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.domain.cluster.cluster import Pool
from app.domain.memory.host import pinned_rounding_bytes
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import Evaluation
from app.domain.units import format_gib


def warnings_of(evaluation: Evaluation, candidate: Candidate, constraints: Constraints, pools: Sequence[Pool]) -> tuple[PlanWarning, ...]:
    """Everything worth saying about this answer."""
    return (
        *_ignored(candidate, constraints),
        *_model(evaluation),
        *_cluster(evaluation, pools),
        *_numerics(evaluation, candidate),
        *_pinned(evaluation, candidate),
        *_memory(evaluation, candidate),
    )


def _warn(code: str, message: str, field: str, fix: str, severity: str = "warning") -> PlanWarning:
    return PlanWarning(code=code, severity=severity, message=message, field=field, fix=fix)  # type: ignore[arg-type]


def _ignored(candidate: Candidate, constraints: Constraints) -> Iterator[PlanWarning]:
    settings = candidate.settings
    if settings.framework != "deepspeed" or settings.strategy == "zero3":
        return
    if constraints.offload_parameters not in (None, "none"):
        yield _warn(
            "offload_parameters_ignored",
            f"DeepSpeed reads offload_param only at stage 3; with {settings.strategy} the parameters stay on the GPU and nothing says so.",
            "constraints.offload_parameters",
            "Choose strategy zero3, or drop parameter offload; this answer counts them on the GPU.",
        )
    if constraints.offload_optimizer == "nvme":
        yield _warn(
            "nvme_becomes_cpu", "Below stage 3 DeepSpeed silently turns NVMe optimizer offload into CPU offload.",
            "constraints.offload_optimizer", "Choose strategy zero3 for NVMe, or write cpu; this answer counts host memory.",
        )  # fmt: skip


def _model(evaluation: Evaluation) -> Iterator[PlanWarning]:
    model, seq_len = evaluation.setup.model, evaluation.setup.recipe.seq_len
    for assumption in model.inferred:
        yield _warn("model_inferred", assumption, "model", "Give model.shape or model.hf_config for exact figures.", "info")
    if model.max_seq_len and seq_len > model.max_seq_len:
        yield _warn(
            "beyond_positions", f"seq_len {seq_len:,} is longer than the {model.max_seq_len:,} positions the model was made for.",
            "training.seq_len", "Shorten the sequences or scale the position embedding.",
        )  # fmt: skip


def _cluster(evaluation: Evaluation, pools: Sequence[Pool]) -> Iterator[PlanWarning]:
    used = evaluation.setup.pool.members
    if len(pools) > 1:
        left = [str(i) for i in range(len(pools)) if i not in used]
        what = f"Use pool {', '.join(map(str, used))}" + (f" and leave pool {', '.join(left)} out" if left else " together")
        yield _warn(
            "pools_used", f"{what}: a synchronous job runs at the pace, and in the memory, of its slowest rank.", "cluster.pools",
            "Pools are numbered from 0 in the order given.", "info",
        )  # fmt: skip
    if evaluation.setup.pool.node.host_memory_bytes is None:
        yield _warn(
            "host_memory_unknown",
            "The node's host memory is not known, so loading and offload are not judged.",
            "cluster.pools.0.host_memory_gib",
            "Give host_memory_gib.",
            "info",
        )


def _numerics(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    recipe, settings = evaluation.setup.recipe, candidate.settings
    if recipe.precision == "fp8":
        yield _warn(
            "fp8_needs_library",
            "The emitted files train in bf16: fp8 matrix products need a library (Transformer Engine, torchao) beside them.",
            "training.precision",
            "Convert the linear layers with that library; the figures here assume it.",
            "info",
        )
    if settings.framework == "deepspeed" and settings.grad_accum > 1 and settings.grad_dtype in ("bf16", "fp16"):
        yield _warn(
            "accumulates_in_16_bit",
            f"DeepSpeed accumulates {settings.grad_accum} micro-steps in {settings.grad_dtype} unless told otherwise.",
            "training.grad_dtype",
            "Set grad_dtype fp32; stages 2 and 3 honour it.",
            "info",
        )
    if (
        settings.framework == "deepspeed"
        and settings.strategy in ("ddp", "zero1")
        and recipe.grad_dtype == "fp32"
        and settings.precision != "fp32"
    ):
        yield _accumulation(settings.strategy)
    if recipe.adapter and recipe.adapter.kind == "qlora" and recipe.master_weights and settings.framework == "deepspeed":
        yield _warn(
            "no_master_of_quantised",
            "A quantised base has no fp32 master: only the adapter's weights are kept in fp32.",
            "training.master_weights",
            "Nothing to change; the answer counts it that way.",
            "info",
        )
    if recipe.global_batch is None and recipe.micro_batch is None:
        yield _warn(
            "global_batch_chosen",
            f"No global_batch was given; this plan steps on {settings.global_batch:,} sequences, and the learning rate that suits "
            "a run depends on that number.",
            "training.global_batch",
            "Give global_batch to keep it.",
            "info",
        )


def _accumulation(strategy: str) -> PlanWarning:
    if strategy == "ddp":
        return _warn(
            "stage0_accumulation",
            "DeepSpeed refuses another accumulation dtype at stage 0; the file leaves it out and accumulates in the compute dtype.",
            "training.grad_dtype",
            "Use ZeRO-2 or ZeRO-3 for fp32 accumulation.",
        )
    return _warn(
        "zero1_fp32_accumulation",
        "fp32 accumulation at stage 1 switches DeepSpeed to BF16_Optimizer: whole fp32 gradients stay on every GPU, "
        "and a 16-bit copy of all of them is made to send. It is counted so.",
        "training.grad_dtype",
        "Use ZeRO-2, which keeps only its part of the fp32 gradients.",
    )


def _pinned(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """What pinning would add on the host if the launch file did not switch rounding off."""
    settings, trained = candidate.settings, evaluation.numbers.trainable
    if settings.framework != "deepspeed" or settings.offload_optimizer != "cpu":
        return
    shard = trained / settings.shard_group_size
    # fp32 gradients and the low-precision staging are pinned at every stage; stages 1 and 2 pin the master copy too.
    blocks = [4 * shard, 2 * shard] + ([4 * shard] if settings.strategy != "zero3" else [])
    extra = sum(pinned_rounding_bytes(b) for b in blocks) * min(settings.world_size, settings.gpus_per_node)
    if extra > _ROUNDING_WORTH_SAYING * candidate.host.peak_bytes:
        yield _warn(
            "pinned_rounding",
            f"Pinned blocks are rounded up to powers of two by default, which would take {format_gib(extra)} more on each node.",
            "constraints.offload_optimizer",
            "launch.sh switches the rounding off (pinned_max_round_threshold_mb); keep that line if you start the job another way.",
            "info",
        )


_ROUNDING_WORTH_SAYING = 0.05


def _memory(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    if candidate.verdict == "tight":
        low, high = candidate.gpu.interval_90_bytes
        yield _warn(
            "tight",
            f"The 90 % interval of the peak ({format_gib(low)} to {format_gib(high)} reserved) reaches past what is safe.",
            "headroom_frac",
            "Use a smaller micro-batch or full checkpointing, or watch the first steps.",
        )
    if evaluation.setup.model.vocab_size and not evaluation.setup.recipe.fused_loss and candidate.gpu.peak_moment == "loss backward":
        yield _warn(
            "fused_loss_helps",
            "The peak is at the loss: three fp32 copies of the logits. A fused loss never holds them.",
            "training.fused_loss",
            "Set fused_loss, with a kernel such as Liger's in the training script.",
            "info",
        )
