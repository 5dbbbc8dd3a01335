"""A DeepSpeed configuration as it will really run: what is ignored is gone, what is left out is filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.audit.deepspeed.keys import known_keys
from app.audit.deepspeed.triple import triple
from app.audit.deepspeed.view import AUTO, HF, OPTIMIZER, PARAM, View
from app.audit.reading import at, block
from app.audit.subject import Subject

OURS = {
    "adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "muadam": "adamw", "muadamw": "adamw", "lion": "lion", "muon": "muon",
    "adafactor": "adafactor", "deepspeedcpuadam": "adamw", "adamw8bit": "adamw_8bit", "adam8bit": "adamw_8bit",
    "pagedadamw8bit": "paged_adamw_8bit",
}  # fmt: skip
"""Optimizers by the names of a request; SGD depends on its momentum."""
DTYPES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Everything of a configuration that memory and time depend on; None where it cannot be known.

    Attributes:
        stage: of ZeRO.
        offload_optimizer, offload_parameters: ``none``, ``cpu`` or ``nvme``, as they act at the stage.
        optimizer_nvme_path, parameters_nvme_path: folders on a drive; empty for none.
        offload_ratio: share of the optimizer's states that is offloaded.
        pin_optimizer, pin_parameters: whether host buffers are page-locked.
        optimizer_buffers, parameter_buffers, parameter_buffer_numel, max_in_cpu_numel: of swapping to a drive.
        reduce_bucket_numel to max_live_numel: elements.
        overlap_comm, contiguous_gradients, reduce_scatter, multi_rank_allreduce: how gradients are reduced.
        hpz: ranks of the secondary shard group, 1 for none; quantized_weights, quantized_gradients: ZeRO++.
        precision: of the weights in the forward pass; autocast: fp32 weights under torch.autocast.
        grad_accum_dtype, communication_dtype: of gradients while they add up, and on the wire.
        fp32_master, low_precision_states: whether there is a fp32 copy, and whether moments are 16-bit.
        bf16_optimizer: stage 1 is run by BF16_Optimizer, whose gradient buffer is whole and fp32.
        optimizer: by a request's name; cpu_step: it runs on the host; torch_adam: torch's in place of the fused kernel.
        micro_batch, grad_accum, global_batch: sequences per rank, micro-steps, sequences of a step.
        tensor_parallel, sequence_parallel, pipeline_parallel, expert_parallel: degrees.
    """

    stage: int
    offload_optimizer: str
    offload_parameters: str
    optimizer_nvme_path: str
    parameters_nvme_path: str
    offload_ratio: float
    super_offload: bool
    pin_optimizer: bool
    pin_parameters: bool
    optimizer_buffers: int
    parameter_buffers: int
    parameter_buffer_numel: int
    max_in_cpu_numel: int
    reduce_bucket_numel: int | None
    prefetch_bucket_numel: int | None
    param_persistence_numel: int | None
    max_reuse_distance_numel: int
    max_live_numel: int
    sub_group_numel: int
    overlap_comm: bool
    contiguous_gradients: bool
    reduce_scatter: bool
    multi_rank_allreduce: bool
    hpz: int
    quantized_weights: bool
    quantized_gradients: bool
    precision: str | None
    autocast: bool
    grad_accum_dtype: str | None
    communication_dtype: str | None
    fp32_master: bool
    low_precision_states: bool
    bf16_optimizer: bool
    optimizer: str | None
    cpu_step: bool
    torch_adam: bool
    gradient_clipping: float | None
    zenflow: bool
    micro_batch: int | None
    grad_accum: int | None
    global_batch: int | None
    tensor_parallel: int
    sequence_parallel: int
    pipeline_parallel: int
    expert_parallel: int


def effective(subject: Subject) -> Effective:
    """Read the configuration of a subject as its release and launcher run it."""
    view = View(subject)
    batch, precision = triple(view), view.precision
    return Effective(
        stage=view.stage, **_offload(view), **_zero(view), **_dtypes(view, precision),
        optimizer=optimizer_of(view), cpu_step=_cpu_step(view), torch_adam=at(view.config, "optimizer.params.torch_adam") is True,
        gradient_clipping=clipping(view), zenflow=bool(block(view.config, "zero_optimization.zenflow")) and view.stage > 0,
        micro_batch=batch.micro, grad_accum=_accumulation(view, batch.accum), global_batch=batch.train,
        tensor_parallel=view.tensor_parallel, sequence_parallel=view.sequence_parallel,
        pipeline_parallel=max(1, subject.degrees.pipeline_parallel), expert_parallel=max(1, subject.degrees.expert_parallel),
    )  # fmt: skip


def acting(view: View, path: str) -> str:
    """Where an offload block really puts its states: parameters at stage 3 only, drives at stage 3 only."""
    device, stage = view.device(path), view.stage
    if stage == 0 or (path == PARAM and stage < 3):
        return "none"
    if device == "nvme" and stage < 3:
        return "none" if runs_bf16_optimizer(view) else "cpu"
    return device


def runs_bf16_optimizer(view: View) -> bool:
    """Stage 1, bf16, fp32 accumulation, and an offload device that is not the CPU."""
    fp32 = accumulation_dtype(view) == "fp32"
    return view.stage == 1 and view.precision == "bf16" and fp32 and view.device(OPTIMIZER) != "cpu"


def accumulation_dtype(view: View) -> str | None:
    """What ``data_types.grad_accum_dtype`` asks for; the precision where it is left out."""
    asked = view.value("data_types.grad_accum_dtype")
    return dtype_name(asked) or view.precision


def dtype_name(given: Any) -> str:
    """bf16, fp16 or fp32 for any of the spellings DeepSpeed takes; empty for anything else."""
    if not isinstance(given, str):
        return ""
    short = given.removeprefix("torch.").lower()
    return DTYPES.get(short, short if short in ("fp32", "fp16", "bf16") else "")


def clipping(view: View) -> float | None:
    """The norm gradients are clipped to; 0 for none, None where the launcher's argument is not known."""
    raw = at(view.config, "gradient_clipping")
    if raw == AUTO and view.subject.launcher in HF:
        given = view.subject.arguments.get("max_grad_norm", 1.0)
        return float(given) if isinstance(given, (int, float)) and not isinstance(given, bool) else 1.0
    value = view.value("gradient_clipping")
    return float(value) if isinstance(value, (int, float)) else None


def optimizer_of(view: View) -> str | None:
    """The optimizer by a request's name; the script's where the file names none."""
    name = (view.optimizer or view.subject.client_optimizer).lower().replace("_", "").replace("-", "")
    if name in ("sgd", "musgd"):
        return "sgd_momentum" if at(view.config, "optimizer.params.momentum") else "sgd"
    if not name and view.subject.training:
        return view.subject.training.optimizer
    return OURS.get(name)


def defaults(release: str) -> dict[str, Any]:
    """What a release takes for every key of the table that is left out."""
    return {path: known.default(release) for path, known in known_keys().items() if known.known_to(release) and not known.replaced_by}


def _offload(view: View) -> dict[str, Any]:
    optimizer, parameters = acting(view, OPTIMIZER), acting(view, PARAM)
    ratio = view.value(f"{OPTIMIZER}.ratio")
    return {
        "offload_optimizer": optimizer, "offload_parameters": parameters,
        "optimizer_nvme_path": _path(view, OPTIMIZER) if optimizer == "nvme" else "",
        "parameters_nvme_path": _path(view, PARAM) if parameters == "nvme" else "",
        "offload_ratio": float(ratio) if view.stage == 3 and optimizer != "none" and isinstance(ratio, (int, float)) else 1.0,
        "super_offload": view.stage == 3 and optimizer == "cpu" and view.on(f"{OPTIMIZER}.super_offload"),
        "pin_optimizer": view.on(f"{OPTIMIZER}.pin_memory"), "pin_parameters": view.on(f"{PARAM}.pin_memory"),
        "optimizer_buffers": view.number(f"{OPTIMIZER}.buffer_count"), "parameter_buffers": view.number(f"{PARAM}.buffer_count"),
        "parameter_buffer_numel": view.number(f"{PARAM}.buffer_size"), "max_in_cpu_numel": view.number(f"{PARAM}.max_in_cpu"),
    }  # fmt: skip


def _path(view: View, offload: str) -> str:
    given = view.value(f"{offload}.nvme_path")
    return given if isinstance(given, str) else ""


def _zero(view: View) -> dict[str, Any]:
    at_3 = view.stage == 3
    overlap, ranks = view.value("zero_optimization.overlap_comm"), view.subject.ranks
    hpz = view.number("zero_optimization.zero_hpz_partition_size") if at_3 else 1
    return {
        "reduce_bucket_numel": view.value("zero_optimization.reduce_bucket_size"),
        "prefetch_bucket_numel": view.value("zero_optimization.stage3_prefetch_bucket_size"),
        "param_persistence_numel": view.value("zero_optimization.stage3_param_persistence_threshold"),
        "max_reuse_distance_numel": view.number("zero_optimization.stage3_max_reuse_distance"),
        "max_live_numel": view.number("zero_optimization.stage3_max_live_parameters"),
        "sub_group_numel": view.number("zero_optimization.sub_group_size"),
        "overlap_comm": (at_3 if overlap is None else bool(overlap)) and view.stage > 0,
        "contiguous_gradients": view.on("zero_optimization.contiguous_gradients") or (not at_3 and acting(view, OPTIMIZER) != "none"),
        "reduce_scatter": view.on("zero_optimization.reduce_scatter"),
        "multi_rank_allreduce": view.on("zero_optimization.use_multi_rank_bucket_allreduce"),
        "hpz": max(1, min(hpz, ranks) if ranks else hpz),
        "quantized_weights": at_3 and view.on("zero_optimization.zero_quantized_weights"),
        "quantized_gradients": at_3 and view.on("zero_optimization.zero_quantized_gradients"),
    }  # fmt: skip


def _dtypes(view: View, precision: str | None) -> dict[str, Any]:
    accumulation = accumulation_dtype(view)
    if view.stage == 2 and not view.newer("0.19.8"):
        accumulation = precision
    wire = view.value("communication_data_type") or precision
    if view.sequence_parallel > 1:
        wire = view.value("seq_parallel_communication_data_type") or wire
    pure = view.stage > 0 and (
        (precision == "bf16" and view.on("bf16.bf16_master_weights_and_grads"))
        or (precision == "fp16" and view.on("fp16.fp16_master_weights_and_grads"))
    )
    autocast = at(view.config, "torch_autocast.enabled") is True
    return {
        "precision": precision, "autocast": autocast, "grad_accum_dtype": accumulation, "communication_dtype": dtype_name(wire) or None,
        "fp32_master": not pure, "low_precision_states": pure and view.on("bf16.bf16_optimizer_states"),
        "bf16_optimizer": runs_bf16_optimizer(view),
    }  # fmt: skip


def _cpu_step(view: View) -> bool:
    return acting(view, OPTIMIZER) != "none"


def _accumulation(view: View, accum: int | None) -> int | None:
    """ZenFlow puts its update interval in place of the micro-steps."""
    interval = at(view.config, "zero_optimization.zenflow.update_interval")
    if view.stage > 0 and isinstance(interval, int) and not isinstance(interval, bool) and view.device(OPTIMIZER) != "none":
        return interval
    return accum
