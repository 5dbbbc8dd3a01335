"""DeepSpeed's keys beside what FSDP2 has for the same, and what has no counterpart. One table; dotted paths of ds_config.json.

Sources: DeepSpeed 0.19.8 ``runtime/zero`` and ``runtime/config.py``; torch 2.13 ``fsdp/_fully_shard``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterpart:
    """One setting.

    Attributes:
        deepspeed: key of ds_config.json; None where DeepSpeed has none.
        fsdp2: what does the same in a script with fully_shard; None where nothing does.
        note: what differs, or why there is none.
    """

    deepspeed: str | None
    fsdp2: str | None
    note: str = ""


def _zero(key: str, fsdp2: str | None, note: str = "") -> Counterpart:
    return Counterpart(deepspeed=f"zero_optimization.{key}", fsdp2=fsdp2, note=note)


COUNTERPARTS: tuple[Counterpart, ...] = (
    _zero("stage", "fully_shard on each block, reshard_after_forward", "stages 1 and 2 keep parameters whole; FSDP2 always shards them"),
    _zero("mics_shard_size", "a mesh of copies × shards (HSDP)", "DeepSpeed 0.19.8 refuses MiCS"),
    _zero(
        "zero_hpz_partition_size",
        "reshard_after_forward=8",
        "an integer keeps that fraction between forward and backward; states stay divided",
    ),
    _zero("reduce_bucket_size", "one unit, as fully_shard was called", "FSDP2 reduces a unit at a time"),
    _zero("overlap_comm", "always on", "FSDP2 reduces on a stream of its own"),
    _zero("stage3_prefetch_bucket_size", "set_modules_to_forward_prefetch", "FSDP2 gathers one unit ahead by itself"),
    _zero("stage3_max_live_parameters", None, "no limit is needed: two units are whole at most, unless more are asked for"),
    _zero(
        "stage3_max_reuse_distance",
        "reshard_after_forward of each unit",
        "DeepSpeed keeps what is used again soon, FSDP2 what it is told to",
    ),
    _zero("stage3_param_persistence_threshold", None, "small parameters are gathered with their unit"),
    _zero("sub_group_size", None, "torch's optimizer steps all shards at once"),
    _zero("offload_optimizer", None, "CPUOffloadPolicy moves parameters, gradients and states together"),
    _zero("offload_param", "CPUOffloadPolicy()", "torch's Adam runs on the CPU then, not DeepSpeedCPUAdam"),
    _zero("offload_optimizer.nvme_path", None, "FSDP2 does not offload to disks"),
    _zero("offload_optimizer.pin_memory", "CPUOffloadPolicy(pin_memory=True)"),
    _zero("offload_optimizer.ratio", None, "all states are offloaded or none"),
    _zero("zero_quantized_weights", None, "set_custom_all_gather is the place for one"),
    _zero("zero_quantized_gradients", None, "set_custom_reduce_scatter is the place for one"),
    _zero("leaf_module.classes", "fully_shard on that module", "a module that is gathered whole, such as a mixture's block of experts"),
    _zero(
        "stage3_gather_16bit_weights_on_model_save",
        "get_model_state_dict(full_state_dict=True, cpu_offload=True)",
        "rank 0 gets the weights in the dtype of the shards",
    ),
    Counterpart(
        deepspeed="bf16.enabled",
        fsdp2="MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
        note="FSDP2's fp32 shards are the master weights; DeepSpeed keeps both",
    ),
    Counterpart(deepspeed="fp16.enabled", fsdp2="MixedPrecisionPolicy(param_dtype=torch.float16) and torch.amp.GradScaler"),
    Counterpart(deepspeed="communication_data_type", fsdp2="MixedPrecisionPolicy(reduce_dtype=…)"),
    Counterpart(deepspeed="data_types.grad_accum_dtype", fsdp2=None, note="sharded gradients have the dtype of the shards"),
    Counterpart(
        deepspeed="gradient_accumulation_steps",
        fsdp2="set_requires_gradient_sync(False)",
        note="whole gradients are held meanwhile; leaving it on reduces every micro-step",
    ),
    Counterpart(deepspeed="gradient_clipping", fsdp2="torch.nn.utils.clip_grad_norm_", note="the norm is a DTensor: full_tensor()"),
    Counterpart(deepspeed="optimizer.type", fsdp2="an optimizer of torch, built after fully_shard"),
    Counterpart(deepspeed="tensor_parallel.autotp_size", fsdp2="parallelize_module before fully_shard"),
    Counterpart(
        deepspeed="sequence_parallel_size", fsdp2="context parallelism of torch or accelerate", note="alone the key splits no sequence"
    ),
    Counterpart(
        deepspeed="activation_checkpointing",
        fsdp2="checkpoint_wrapper or the model's own",
        note="DeepSpeed's engine does not read the block",
    ),
    Counterpart(deepspeed=None, fsdp2="shard_placement_fn", note="DeepSpeed shards flat"),
    Counterpart(deepspeed=None, fsdp2="set_reshard_after_backward(False)", note="keeps parameters whole over micro-steps"),
)
