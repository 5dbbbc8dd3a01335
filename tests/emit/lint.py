"""What DeepSpeed 0.19.8 would refuse, ignore or quietly change in a ds_config, written down apart from the emitter."""

from __future__ import annotations

import math
from typing import Any

from app.emit.job import EmitJob

STAGE3_KEYS = ("sub_group_size", "zero_hpz_partition_size", "leaf_module", "offload_param")
ZERO_KEYS = {
    "stage", "overlap_comm", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "offload_optimizer",
    "offload_param", "sub_group_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save",
    "zero_hpz_partition_size", "leaf_module",
}  # fmt: skip
TOP_KEYS = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "bf16",
    "fp16", "data_types", "communication_data_type", "zero_optimization", "aio", "optimizer", "tensor_parallel",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "sequence_parallel_size", "data_parallel_size",
    "seq_parallel_communication_data_type",
}  # fmt: skip
OPTIMIZER_KEYS = {
    "AdamW": {"lr", "betas", "eps", "weight_decay", "adam_w_mode", "torch_adam", "fused", "foreach"},
    "Lion": {"lr", "betas", "weight_decay"},
    "SGD": {"lr", "momentum", "weight_decay"},
    "Muon": {"lr", "momentum", "weight_decay", "betas", "eps"},
}
FILLED_BY_TRAINER = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "bf16.enabled", "fp16.enabled", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
    "optimizer.params.weight_decay",
}  # fmt: skip


def autos(config: dict[str, Any], path: str = "") -> set[str]:
    """Paths whose value is the word auto."""
    found: set[str] = set()
    for key, value in config.items():
        here = f"{path}{key}"
        found |= autos(value, f"{here}.") if isinstance(value, dict) else {here} if value == "auto" else set()
    return found


def findings(config: dict[str, Any], job: EmitJob) -> list[str]:
    """Ids of the rules a config breaks for this job; an empty list for a good one."""
    checks = {**_structure(config), **_precision(config), **_offload(config, job), **_optimizer(config, job)}
    return [rule for rule, broken in checks.items() if broken]


def _structure(config: dict[str, Any]) -> dict[str, bool]:
    zero = config["zero_optimization"]
    stage3 = [key for key in zero if key.startswith("stage3_") or key in STAGE3_KEYS]
    numbers = [value for value in zero.values() if not isinstance(value, dict)]
    return {
        "DS005 unknown zero key": not set(zero) <= ZERO_KEYS,
        "DS006 unknown top-level key": not set(config) <= TOP_KEYS,
        "DS009 clipping not stated": "gradient_clipping" not in config,
        "DS028 overlap not stated": zero["stage"] > 0 and len(zero) > 1 and "overlap_comm" not in zero,
        "DS031 stage-3 key below stage 3": zero["stage"] < 3 and bool(stage3),
        "DS049 nothing gathered on save": zero["stage"] == 3 and not zero["stage3_gather_16bit_weights_on_model_save"],
        "fractional or null number": any(not isinstance(value, int) for value in numbers),
        "keys at stage 0": zero["stage"] == 0 and len(zero) > 1,
    }


def _precision(config: dict[str, Any]) -> dict[str, bool]:
    zero, bf16, fp16 = config["zero_optimization"], config.get("bf16", {}), config.get("fp16", {})
    compute = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    accumulate = config.get("data_types", {}).get("grad_accum_dtype")
    on_gpu = zero.get("offload_optimizer", {}).get("device") != "cpu"
    bf16_optimizer = zero["stage"] == 1 and compute == "bf16" and accumulate == "fp32" and on_gpu
    master, states = bf16.get("bf16_master_weights_and_grads"), bf16.get("bf16_optimizer_states")
    return {
        "DS001 fp16 and bf16": bool(bf16) and bool(fp16),
        "DS022 inert keys under BF16_Optimizer": bf16_optimizer and len(zero) > 1,
        "DS025 accumulation dtype at stage 0": zero["stage"] == 0 and accumulate is not None,
        "DS046 half of the pure-bf16 pair": bool(master) != bool(states),
        "DS046 pure bf16 at stage 0": bool(master) and zero["stage"] == 0,
        "accumulation dtype says nothing new": accumulate == compute,
        "DS061 communication dtype says nothing new": config.get("communication_data_type") == compute,
        "DS064 loss scale": fp16.get("loss_scale", 0) < 0 or fp16.get("loss_scale_window", 1) <= 0,
    }


def _offload(config: dict[str, Any], job: EmitJob) -> dict[str, bool]:
    zero = config["zero_optimization"]
    optimizer, param = zero.get("offload_optimizer", {}), zero.get("offload_param", {})
    nvme = "nvme" in (optimizer.get("device"), param.get("device"))
    ranks = job.settings.dp_shard
    tensors = [w for s in job.model.stacks for w in s.block.weights] + list(job.model.weights)
    largest = max(math.ceil(w.numel / w.copies / ranks) for w in tensors)
    shard = sum(w.numel for w in tensors) / ranks
    hpz = zero.get("zero_hpz_partition_size", 1)
    return {
        "DS013 offload_param below stage 3": bool(param) and zero["stage"] < 3,
        "DS014 nvme below stage 3": nvme and zero["stage"] < 3,
        "DS015 no nvme_path": any(b.get("device") == "nvme" and not b.get("nvme_path") for b in (optimizer, param)),
        "DS016 offload at stage 0": bool(optimizer) and zero["stage"] == 0,
        "DS017 swap buffer too small": param.get("device") == "nvme" and param["buffer_size"] < largest,
        "DS018 too few swap buffers": optimizer.get("device") == "nvme" and optimizer["buffer_count"] < 4,
        "DS020 nothing reaches the drive": param.get("device") == "nvme" and param["max_in_cpu"] >= shard,
        "DS062 pinning not stated": any(b and "pin_memory" not in b for b in (optimizer, param)),
        "buffer_size in offload_optimizer": "buffer_size" in optimizer,
        "inert swap keys": any(b.get("device") == "cpu" and set(b) > {"device", "pin_memory"} for b in (optimizer, param)),
        "aio without nvme": ("aio" in config) != nvme,
        "DS033 hpz": hpz != 1 and (job.settings.world_size % hpz != 0 or job.settings.nodes == 1),
    }


def _optimizer(config: dict[str, Any], job: EmitJob) -> dict[str, bool]:
    zero, block = config["zero_optimization"], config.get("optimizer")
    kind, params = (block["type"], block["params"]) if block else ("client", {})
    untested = kind in ("SGD", "client")
    offloaded = "offload_optimizer" in zero
    flags = config.get("zero_allow_untested_optimizer"), config.get("zero_force_ds_cpu_optimizer")
    return {
        "DS037 untested optimizer": zero["stage"] > 0 and untested and flags[0] is not True,
        "DS037 flag without need": not untested and flags[0] is not None,
        "DS038 client optimizer with offload": offloaded and kind == "client" and flags[1] is not False,
        "DS039 max_grad_norm": "max_grad_norm" in params,
        "DS040 adam mode not stated": kind == "AdamW" and params.get("adam_w_mode") is not True,
        "DS045 Muon with reduce_scatter": kind == "Muon" and zero["stage"] == 3 and zero["reduce_scatter"],
        "unknown optimizer": kind != "client" and kind not in OPTIMIZER_KEYS,
        "unknown optimizer key": kind != "client" and not set(params) <= OPTIMIZER_KEYS.get(kind, set()),
        "DS054 MoE block not a leaf": job.model.main_block.class_name == "MixtralDecoderLayer"
        and zero["stage"] == 3
        and "MixtralSparseMoeBlock" not in zero.get("leaf_module", {}).get("classes", []),
    }
