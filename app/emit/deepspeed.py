"""ds_config.json: the plan in DeepSpeed's words, without a key that does nothing for it or that its release has not.

Sources: DeepSpeed 0.19.8 ``runtime/config.py``, ``runtime/engine.py``, ``runtime/zero/config.py``; transformers
``integrations/deepspeed.py`` for what "auto" becomes.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from app.domain.errors import InvalidRequestError
from app.domain.plan import Artifact
from app.emit.deepspeed_optimizer import optimizer_block, optimizer_flags
from app.emit.deepspeed_zero import aio_block, uses_bf16_optimizer, zero_block
from app.emit.job import EmitJob
from app.emit.recipe import compute_dtype, zero_stage
from app.emit.releases import without_later_keys

Dialect = Literal["plain", "hf_auto"]


def deepspeed_config(job: EmitJob, *, dialect: Dialect = "plain") -> Artifact:
    """Write ds_config.json.

    Args:
        job: the plan.
        dialect: ``plain`` for deepspeed.initialize and accelerate; ``hf_auto`` for the Hugging Face Trainer, with "auto"
            in the keys it takes from TrainingArguments. Bucket sizes stay numbers there: "auto" would replace the
            plan's by hidden_size².

    Returns:
        The artifact; plain JSON without comments, which every reader of the file accepts.

    Raises:
        InvalidRequestError: DeepSpeed cannot do what the plan says.
    """
    auto = dialect == "hf_auto"
    config: dict[str, Any] = {
        **_batch(job, auto=auto),
        "gradient_clipping": "auto" if auto else job.settings.gradient_clipping,
        **_precision(job, auto=auto),
        "zero_optimization": zero_block(job),
        **aio_block(job),
        **optimizer_block(job, auto=auto),
        **optimizer_flags(job),
        **_parallel(job),
    }
    text = json.dumps(without_later_keys(config, job), indent=2, allow_nan=False) + "\n"
    return Artifact(filename="ds_config.json", media_type="application/json", text=text)


def _batch(job: EmitJob, *, auto: bool) -> dict[str, Any]:
    if auto:
        keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        return dict.fromkeys(keys, "auto")
    s = job.settings
    batch: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": s.micro_batch,
        "gradient_accumulation_steps": s.grad_accum,
    }
    # DeepSpeed checks the product against every rank, unless an mpu or mesh tells it which of them share their data.
    if s.tensor_parallel == s.pipeline_parallel == s.sequence_parallel == 1:
        return {"train_batch_size": s.micro_batch * s.grad_accum * s.dp, **batch}
    return batch


def _precision(job: EmitJob, *, auto: bool) -> dict[str, Any]:
    s, dtype = job.settings, compute_dtype(job)
    block: dict[str, Any] = {"enabled": "auto" if auto else True}
    out: dict[str, Any] = {}
    if dtype == "bf16":
        if not s.master_weights and zero_stage(job) > 0:
            block |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        if zero_stage(job) in (1, 2) and not uses_bf16_optimizer(job):
            block["check_grad_overflow"] = True  # only these stages read it, and its default has changed
        out["bf16"] = block
    elif dtype == "fp16":
        # loss_scale 0 is dynamic scaling, from 2^16 on.
        block |= {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2}
        if not s.master_weights:
            _check_pure_fp16(job)
            block["fp16_master_weights_and_grads"] = True
        out["fp16"] = block
    if _needs_grad_accum_dtype(job, dtype):
        out["data_types"] = {"grad_accum_dtype": s.grad_dtype}
    if s.reduce_dtype != dtype and s.world_size > 1 and not uses_bf16_optimizer(job):
        out["communication_data_type"] = s.reduce_dtype
    return out


def _check_pure_fp16(job: EmitJob) -> None:
    s = job.settings
    if s.offload_optimizer != "cpu" or s.optimizer != "adamw":
        raise InvalidRequestError.at(
            "training",
            "master_weights",
            msg="DeepSpeed keeps fp16 master weights only for AdamW offloaded to the CPU",
            hint="set master_weights true, or precision bf16",
        )


def _needs_grad_accum_dtype(job: EmitJob, dtype: str) -> bool:
    """Stage 0 refuses a dtype of its own, and pure 16-bit training accumulates in it by definition."""
    s = job.settings
    return zero_stage(job) > 0 and s.master_weights and s.grad_dtype != dtype


def _parallel(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    out: dict[str, Any] = {}
    if s.tensor_parallel > 1:
        out["tensor_parallel"] = {"autotp_size": s.tensor_parallel}
        if s.strategy == "zero3" and job.model.kind == "decoder":
            # Without it every tensor rank holds the whole logits.
            out["tensor_parallel"]["vocab_parallel_lm_head"] = True
    if s.sequence_parallel > 1:
        # The size alone enables nothing: the mesh is built from both, and gradients would travel in fp32 by default.
        out["sequence_parallel_size"] = s.sequence_parallel
        out["data_parallel_size"] = s.dp
        out["seq_parallel_communication_data_type"] = s.reduce_dtype
    return out
