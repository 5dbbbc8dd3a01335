"""A configuration as it runs, in the words of a planning request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from app.audit.deepspeed.effective import Effective, effective
from app.audit.reading import whole
from app.audit.subject import Subject
from app.audit.torch.effective import Effective as TorchEffective
from app.audit.torch.effective import effective_fsdp

_STAGES = ("ddp", "zero1", "zero2", "zero3")
_CHECKPOINTING = (
    "activation checkpointing is a matter of the model's code; none is assumed, "
    'say training.activation_checkpointing "full" where it is on'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What the file pins of a planning request.

    Attributes:
        training, constraints: values by the request's names; None in ``training`` leaves what the request says.
        sizes: DeepSpeed's sizes, as ``GivenSizes`` takes them; None for other frameworks.
        assumed: what the file leaves open, in words.
        why_not: why nothing can be predicted; empty where it can.
    """

    training: dict[str, Any] = field(default_factory=dict)
    constraints: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] | None = None
    assumed: tuple[str, ...] = ()
    why_not: str = ""


def running(subject: Subject) -> Running:
    """The file of a subject as its libraries run it."""
    if subject.kind == "deepspeed":
        return _deepspeed(subject, effective(subject))
    found = effective_fsdp(subject)
    if found is None:
        return Running(why_not="Memory and time are not predicted: nothing in the file says how the job is sharded.")
    if found.framework == "deepspeed":
        inner = inner_deepspeed(subject)
        if inner is None:
            return Running(why_not="Memory and time are not predicted: the DeepSpeed settings are in a file of their own; audit that one.")
        return _deepspeed(inner, effective(inner))
    return _torch(subject, found)


def inner_deepspeed(subject: Subject) -> Subject | None:
    """DeepSpeed's own configuration inside a file of accelerate or the Trainer; None where there is none."""
    found = effective_fsdp(subject)
    if found is None or found.deepspeed is None:
        return None
    arguments = subject.config if subject.kind == "hf_trainer" else subject.arguments
    return replace(subject, kind="deepspeed", config=found.deepspeed, arguments=arguments)


def _deepspeed(subject: Subject, found: Effective) -> Running:
    ranks, hpz = subject.ranks, found.hpz
    constraints: dict[str, Any] = {
        "framework": "deepspeed", "strategy": _STAGES[found.stage],
        "offload_optimizer": found.offload_optimizer, "offload_parameters": found.offload_parameters,
        "shard_group_size": hpz if hpz > 1 and (ranks is None or hpz < ranks) else None,
    }  # fmt: skip
    degrees = ("tensor_parallel", "sequence_parallel", "pipeline_parallel", "expert_parallel")
    constraints |= {name: value for name in degrees if (value := getattr(found, name)) > 1}
    gradients = found.grad_accum_dtype if found.grad_accum_dtype != found.precision else None
    training = {
        "micro_batch": found.micro_batch, "grad_accum": found.grad_accum, "precision": found.precision, "master_weights": found.fp32_master,
        "optimizer": found.optimizer, "grad_dtype": gradients,
    }  # fmt: skip
    assumed = _recompute(subject, training)
    if found.bf16_optimizer:
        assumed += ("stage 1 with fp32 accumulation in bf16 runs BF16_Optimizer, whose whole fp32 gradients come on top of the prediction",)
    sizes = {
        "bucket": found.reduce_bucket_numel, "prefetch": found.prefetch_bucket_numel, "persistence": found.param_persistence_numel,
        "reuse": found.max_reuse_distance_numel, "sub_group": found.sub_group_numel, "overlap_comm": found.overlap_comm,
        "quantized_weights": found.quantized_weights, "quantized_gradients": found.quantized_gradients,
        "kept_frac": 1.0 - found.offload_ratio,
    }  # fmt: skip
    return Running(training=_batch(subject, training), constraints=constraints, sizes=_whole(sizes), assumed=assumed)


def _torch(subject: Subject, found: TorchEffective) -> Running:
    fsdp = found.framework == "fsdp" and found.strategy != "ddp"
    constraints: dict[str, Any] = {"framework": "fsdp2" if fsdp else "ddp", "strategy": found.strategy}
    if found.strategy == "hsdp":
        constraints["shard_group_size"] = found.shards
    offload = "cpu" if found.offload else "none"
    constraints |= {"offload_optimizer": offload, "offload_parameters": offload} if fsdp else {}
    axes = {"tensor_parallel": found.tensor_parallel, "sequence_parallel": max(found.context_parallel, found.sequence_parallel)}
    constraints |= {name: size for name, size in axes.items() if size > 1}
    training: dict[str, Any] = {
        "precision": found.compute if found.mixed_precision != "fp8" else "fp8", "master_weights": found.stored == "fp32",
        "grad_accum": found.grad_accum, "micro_batch": whole(subject.config.get("per_device_train_batch_size")),
        "activation_checkpointing": "full" if found.activation_checkpointing else None,
        "activation_offload": found.activation_offload or None,
    }  # fmt: skip
    if fsdp and found.compute != "fp32":
        training["grad_dtype"] = found.reduce
    assumed = _recompute(subject, training)
    if found.version == 1 and fsdp:
        assumed += ("FSDP1 is predicted as FSDP2 with the same sharding, whose buffers are a little smaller",)
    if fsdp and found.wrap == "whole":
        assumed += (
            "the prediction has a unit for each block; without a wrap policy the whole model is gathered at once, which needs more",
        )
    if fsdp and found.grad_accum > 1 and not found.sync_each_batch:
        assumed += ("gradients are predicted as reduced at every micro-step; held back until the last they take more",)
    return Running(training=_batch(subject, training), constraints=constraints, assumed=assumed)


def _recompute(subject: Subject, training: dict[str, Any]) -> tuple[str, ...]:
    """Fill in what no file of DeepSpeed says."""
    asked = subject.training.activation_checkpointing if subject.training else None
    by_trainer = subject.arguments.get("gradient_checkpointing") or subject.config.get("gradient_checkpointing")
    if training.get("activation_checkpointing") or asked:
        return ()
    training["activation_checkpointing"] = "full" if by_trainer is True else "none"
    return () if by_trainer is True else (_CHECKPOINTING,)


def _batch(subject: Subject, training: dict[str, Any]) -> dict[str, Any]:
    """A batch that the file or the request pins whole leaves no global batch to be kept."""
    given = subject.training
    micro = training.get("micro_batch") or (given.micro_batch if given else None)
    accum = training.get("grad_accum") or (given.grad_accum if given else None)
    return training | ({"global_batch": None, "micro_batch": micro, "grad_accum": accum} if micro and accum else {})


_MOST = 2**50
"""Elements above which a size bounds nothing: more than any model has."""


def _whole(sizes: dict[str, Any]) -> dict[str, Any]:
    """Sizes that are whole numbers, as every file that is read has them; sub-groups of 0 are one for each parameter, which tile nothing."""
    numbers = ("bucket", "prefetch", "persistence", "reuse", "sub_group")
    fine = {name: whole(sizes[name]) for name in numbers}
    known = {name: min(value, _MOST) if value is not None and value >= 0 else None for name, value in fine.items()}
    return sizes | known | {"bucket": known["bucket"] or None, "sub_group": known["sub_group"] or None}
