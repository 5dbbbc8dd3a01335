"""The zero_optimization block, and the aio block that belongs to its NVMe offload."""

from __future__ import annotations

import math
from typing import Any

from app.domain.errors import InvalidRequestError
from app.domain.model.architecture import Architecture, Weight
from app.domain.model.parameters import is_moe
from app.emit.job import EmitJob
from app.emit.model_source import SHAPED_MOE
from app.emit.recipe import compute_dtype, zero_stage

AIO_BLOCK_BYTES = 2**20
MAX_PARAM_BUFFERS = 64
ADAM_SWAP_BUFFERS = 4
"""One buffer each for parameter, gradient and two moments of the tile being stepped."""


def zero_block(job: EmitJob) -> dict[str, Any]:
    """zero_optimization for the plan's stage: keys that only another stage reads are left out.

    Raises:
        InvalidRequestError: an offload the stage would silently ignore, or a hpZ group that does not divide the ranks.
    """
    stage = zero_stage(job)
    _check_offload(job, stage)
    block: dict[str, Any] = {"stage": stage}
    if stage == 0 or uses_bf16_optimizer(job):
        return block
    s = job.settings
    block |= {
        "overlap_comm": s.overlap_comm,
        "contiguous_gradients": True,
        # Muon orthogonalises whole matrices, which a reduce-scatter at stage 3 would have cut up.
        "reduce_scatter": not (s.optimizer == "muon" and stage == 3),
        "reduce_bucket_size": s.reduce_bucket_numel,
    }
    if stage == 3:
        block |= _stage3(job)
    if s.offload_optimizer != "none":
        block["offload_optimizer"] = _offload_optimizer(job)
    if s.offload_parameters != "none":
        block["offload_param"] = _offload_param(job)
    return block


def uses_bf16_optimizer(job: EmitJob) -> bool:
    """Whether DeepSpeed picks BF16_Optimizer, whose buckets are fixed: stage 1, bf16, fp32 accumulation, states on GPU."""
    s = job.settings
    on_gpu = s.offload_optimizer != "cpu"
    return zero_stage(job) == 1 and compute_dtype(job) == "bf16" and s.master_weights and s.grad_dtype == "fp32" and on_gpu


def aio_block(job: EmitJob) -> dict[str, Any]:
    """The aio block: only NVMe offload reads it. Depth and threads are what keeps one data-centre drive busy."""
    s = job.settings
    if "nvme" not in (s.offload_optimizer, s.offload_parameters):
        return {}
    return {
        "aio": {
            "block_size": AIO_BLOCK_BYTES,
            "queue_depth": 16,
            "intra_op_parallelism": 2,
            "single_submit": False,
            "overlap_events": True,
        }
    }


def _check_offload(job: EmitJob, stage: int) -> None:
    s = job.settings
    if stage == 0 and s.offload_optimizer != "none":
        raise InvalidRequestError.at(
            "constraints", "offload_optimizer", msg="optimizer offload needs ZeRO stage 1 or more", hint="use zero1"
        )
    if stage < 3 and "nvme" in (s.offload_optimizer, s.offload_parameters):
        raise InvalidRequestError.at(
            "constraints",
            "offload_optimizer",
            msg=f"NVMe offload at stage {stage} is silently something else",
            hint="use zero3",
        )
    if stage < 3 and s.offload_parameters != "none":
        raise InvalidRequestError.at("constraints", "offload_parameters", msg=f"stage {stage} ignores parameter offload", hint="use zero3")
    if s.hpz_group_size > 1 and s.world_size % s.hpz_group_size:
        raise InvalidRequestError.at(
            "constraints",
            "shard_group_size",
            msg=f"hpZ group of {s.hpz_group_size} does not divide {s.world_size} ranks",
            hint=f"use {s.gpus_per_node}, the GPUs of one node",
        )


def _stage3(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    block: dict[str, Any] = {
        "stage3_prefetch_bucket_size": s.prefetch_bucket_numel,
        "stage3_param_persistence_threshold": s.param_persistence_numel,
        "stage3_max_live_parameters": s.max_live_numel,
        "stage3_max_reuse_distance": s.max_reuse_distance_numel,
        "sub_group_size": s.sub_group_numel,
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    if s.hpz_group_size > 1:
        block["zero_hpz_partition_size"] = s.hpz_group_size
    if s.quantized_weights:
        block["zero_quantized_weights"] = True
    if s.quantized_gradients:
        block["zero_quantized_gradients"] = True
    if leaves := moe_leaf_classes(job):
        block["leaf_module"] = {"classes": leaves}
    return block


def moe_leaf_classes(job: EmitJob) -> list[str]:
    """Classes whose experts stage 3 must gather together, because each rank runs different ones."""
    known = {stack.block.moe.class_name for stack in job.model.stacks if stack.block.moe} - {""}
    if not known and is_moe(job.model) and not job.hf_id and not job.hf_config:
        return [SHAPED_MOE]
    return sorted(known)


def _offload_optimizer(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    if s.offload_optimizer == "cpu":
        # Whole sub-groups are kept on the GPU, the first (1 - ratio) of them.
        partly = {"ratio": s.offload_optimizer_ratio} if s.offload_optimizer_ratio < 1 else {}
        return {"device": "cpu", "pin_memory": True} | partly
    return {
        "device": "nvme",
        "nvme_path": job.nvme_path,
        "pin_memory": True,
        "buffer_count": ADAM_SWAP_BUFFERS,
        "pipeline_read": False,
        "pipeline_write": False,
    }


def _offload_param(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    if s.offload_parameters == "cpu":
        return {"device": "cpu", "pin_memory": True}
    return {
        "device": "nvme",
        "nvme_path": job.nvme_path,
        "pin_memory": True,
        "buffer_count": _param_buffers(job),
        "buffer_size": _largest_shard_numel(job),
        # The default keeps the first 1e9 elements of each rank in host memory, off the drive.
        "max_in_cpu": 0,
    }


def _tensors(model: Architecture) -> list[Weight]:
    return [w for s in model.stacks for w in s.block.weights] + list(model.weights)


def _largest_shard_numel(job: EmitJob) -> int:
    """Elements the biggest tensor leaves on one rank: a swap buffer must hold it whole."""
    ranks = job.settings.dp_shard * job.settings.sequence_parallel
    return max(math.ceil(w.numel / w.copies / ranks) for w in _tensors(job.model))


def _param_buffers(job: EmitJob) -> int:
    """Buffers for what is fetched at once: the tensors of one block, and those the prefetch bucket reaches into."""
    s, block = job.settings, job.model.main_block
    large = [w for w in block.weights if w.numel // w.copies > s.param_persistence_numel]
    tensors, numel = sum(w.copies for w in large), sum(w.numel for w in large)
    ahead = math.ceil(s.prefetch_bucket_numel / max(numel, 1))
    return min(MAX_PARAM_BUFFERS, max(5, tensors * (1 + ahead) + 2))
