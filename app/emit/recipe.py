"""Values every emitted file must agree on: hyperparameters, dtypes, what the header says."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import InvalidRequestError
from app.domain.parallel.strategy import ZERO_STAGES
from app.emit.job import EmitJob
from app.emit.render import comment, comment_lines

TORCH_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32", "fp8": "torch.bfloat16"}
"""What tensors are held in; fp8 is a format of single matmuls, the tensors around them stay bf16."""

CLIENT_OPTIMIZERS = ("adamw_8bit", "paged_adamw_8bit", "adafactor")
"""Optimizers DeepSpeed has no name for: the training script builds them and hands them in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """Starting points a user changes by flag; memory and speed do not depend on them."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    momentum: float = 0.9


def hyperparameters(job: EmitJob) -> Hyperparameters:
    """Common starting values: ten times the learning rate for adapters, a third of AdamW's for Lion."""
    optimizer = job.settings.optimizer
    lr = 2e-4 if job.adapter else 2e-5
    if optimizer == "lion":
        return Hyperparameters(lr=lr / 4, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.1)
    if optimizer in ("sgd", "sgd_momentum"):
        return Hyperparameters(lr=lr * 100, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    if optimizer == "muon":
        return Hyperparameters(lr=lr * 10, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, momentum=0.95)
    return Hyperparameters(lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0 if job.adapter else 0.1)


def compute_dtype(job: EmitJob) -> str:
    """The 16- or 32-bit dtype matmuls take their inputs from: bf16 under fp8."""
    return "bf16" if job.settings.precision == "fp8" else job.settings.precision


def mixed_precision(job: EmitJob) -> str:
    """accelerate's word: with mixed precision it stores trained weights in fp32; without, in the dtype they were loaded in."""
    dtype = compute_dtype(job)
    return "no" if dtype == "fp32" or job.settings.param_dtype == dtype else dtype


def fsdp_offload(job: EmitJob) -> bool:
    """Whether FSDP2's shards live in host memory; its one policy moves parameters, gradients and states together."""
    return (job.settings.offload_optimizer, job.settings.offload_parameters) != ("none", "none")


def zero_stage(job: EmitJob) -> int:
    """DeepSpeed's stage number of the plan's strategy.

    Raises:
        InvalidRequestError: the strategy is not one DeepSpeed has.
    """
    strategy = job.settings.strategy
    if strategy not in ZERO_STAGES:
        raise InvalidRequestError.at(
            "constraints",
            "strategy",
            msg=f"strategy {strategy} is not a DeepSpeed one",
            hint=f"use {', '.join(ZERO_STAGES)}",
        )
    return ZERO_STAGES[strategy]


WRITTEN_FOR = {"DeepSpeed": "0.19.8", "torch": "2.13", "transformers": "5.24", "accelerate": "1.15"}
"""Releases whose source the files follow and on which they are run, where the request names no other."""


def header(job: EmitJob) -> list[str]:
    """What the file was made for, line by line, safe to put behind any comment sign."""
    s = job.settings
    ranks = f"{s.world_size} GPUs = {s.nodes} x {s.gpus_per_node}"
    batch = f"{s.global_batch} sequences of {s.seq_len} = micro_batch {s.micro_batch} x grad_accum {s.grad_accum} x dp {s.dp}"
    return [
        f"Written by Shardplan {comment(job.engine_version)} for {comment(job.model.name)}.",
        *_plan_line(job),
        f"For {', '.join(_libraries(job))}.",
        f"{s.framework} {s.strategy}, {s.precision}, {s.optimizer}, checkpointing {s.activation_checkpointing}",
        ranks,
        f"Global batch: {batch}",
        *(line for key, value in job.figures.items() for line in comment_lines(f"{key}: {value}")),
    ]


def _plan_line(job: EmitJob) -> list[str]:
    """Where the plan is kept, and what it is called there."""
    if not job.plan_id:
        return []
    name = f"{comment(job.plan_name)}, " if job.plan_name else ""
    return [f"Plan: {name}/plans/{comment(job.plan_id)}"]


def _libraries(job: EmitJob) -> list[str]:
    """Libraries the plan's files meet, with the releases they are for."""
    named = {name: job.versions.of(name.lower()) if job.versions else "" for name in WRITTEN_FOR}
    used = [name for name in WRITTEN_FOR if name != "DeepSpeed" or job.settings.framework == "deepspeed"]
    return [f"{name} {comment(named[name] or WRITTEN_FOR[name])}" for name in used]
