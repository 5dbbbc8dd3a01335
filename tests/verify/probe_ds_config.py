"""Reads ds_config files with DeepSpeed's own parser, as a job of a given number of ranks would: python ... RANKS FILE..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed.runtime.config as ds
from deepspeed.runtime.config import DeepSpeedConfig


def device_of(block: Any) -> str:
    """Where an offload block puts things."""
    return "none" if block is None else str(getattr(block.device, "value", block.device))


def resolved(path: str) -> dict[str, Any]:
    """What DeepSpeed understood."""
    config = DeepSpeedConfig(path)
    zero = config.zero_config
    return {
        "batch": [
            config.train_batch_size,
            config.train_micro_batch_size_per_gpu,
            config.gradient_accumulation_steps,
        ],
        "stage": int(zero.stage),
        "clipping": config.gradient_clipping,
        "bf16": config.bfloat16_config.enabled,
        "fp16": config.float16_config.enabled,
        "pure": config.bfloat16_config.bf16_master_weights_and_grads and config.bfloat16_config.bf16_optimizer_states,
        "overlap": zero.overlap_comm,
        "bucket": zero.reduce_bucket_size,
        "prefetch": zero.prefetch_bucket_size,
        "persistence": zero.param_persistence_threshold,
        "sub_group": zero.sub_group_size,
        "hpz": zero.zero_hpz_partition_size,
        "offload_optimizer": device_of(zero.offload_optimizer),
        "ratio": zero.offload_optimizer.ratio if zero.offload_optimizer else 1.0,
        "offload_param": device_of(zero.offload_param),
        "grad_accum_dtype": config.grad_accum_dtype,
        "optimizer": config.optimizer_name,
        "aio": config.aio_config["queue_depth"],
        "leaf": list(zero.leaf_module.classes),
    }


def main() -> None:
    ranks = int(sys.argv[1])
    ds.dist.get_rank = lambda *_: 0
    ds.dist.get_world_size = lambda *_: ranks
    print(json.dumps({Path(path).parent.name: resolved(path) for path in sys.argv[2:]}))


if __name__ == "__main__":
    main()
