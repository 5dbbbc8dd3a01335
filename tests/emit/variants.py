"""Plans that together take every branch of the script templates."""

from __future__ import annotations

from typing import Any

from app.emit.job import EmitJob
from tests.emit.jobs import TINY_MIXTRAL, make_job, tiny_llama

LORA = {"kind": "lora", "rank": 8, "targets": "attention", "modules_to_save": ["lm_head"], "dropout": 0.1}
OPTIMIZERS = ("adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor", "lion", "muon", "sgd_momentum", "sgd")
FRAMEWORKS = ("deepspeed", "fsdp2", "ddp")

COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp32": {"precision": "fp32"},
    "fp16": {"precision": "fp16"},
    "fp8": {"precision": "fp8"},
    "selective": {"activation_checkpointing": "selective"},
    "full": {"activation_checkpointing": "full", "compile": True, "activation_offload": True},
    "full only": {"activation_checkpointing": "full"},
    "offloaded activations": {"activation_checkpointing": "full", "activation_offload": True},
    "compile": {"compile": True},
    "fused loss": {"fused_loss": True},
    "eager": {"attention": "eager"},
    "tensor parallel": {"tensor_parallel": 2, "dp_shard": 4},
    **{f"optimizer {name}": {"optimizer": name} for name in OPTIMIZERS},
}
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "deepspeed": {
        "zero1": {"strategy": "zero1"},
        "zero3": {"strategy": "zero3", "activation_checkpointing": "full", "hpz_group_size": 4},
        "zero3 cpu": {"strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "cpu"},
        "zero3 partly": {"strategy": "zero3", "offload_optimizer": "cpu", "offload_optimizer_ratio": 0.75},
        "zero3 nvme": {"strategy": "zero3", "offload_optimizer": "nvme", "offload_parameters": "nvme"},
        "one node": {"nodes": 1, "world_size": 4, "dp_shard": 4},
    },
    "fsdp2": {
        "grad op": {"strategy": "fsdp_grad_op"},
        "hsdp": {"strategy": "hsdp", "dp_replicate": 2, "dp_shard": 4},
        "hsdp and tensor parallel": {"strategy": "hsdp", "dp_replicate": 2, "dp_shard": 2, "tensor_parallel": 2},
        "offload": {"offload_parameters": "cpu", "offload_optimizer": "cpu"},
        "pure bf16": {"param_dtype": "bf16", "reduce_dtype": "bf16", "master_weights": False},
        "in backward": {"optimizer_in_backward": True, "grad_accum": 1},
        "foreach": {"optimizer_implementation": "foreach"},
        "loop": {"optimizer_implementation": "loop"},
    },
    "ddp": {
        "one node": {"nodes": 1, "world_size": 4, "dp_shard": 4},
        "sharded optimizer": {"strategy": "zero1"},
        "sharded lion, compiled": {"strategy": "zero1", "optimizer": "lion", "compile": True},
        "sharded sgd": {"strategy": "zero1", "optimizer": "sgd_momentum"},
        "one GPU": {"world_size": 1, "dp_shard": 1, "nodes": 1},
    },
}


def all_jobs() -> dict[str, EmitJob]:
    """Every variant by a name that can be a folder."""
    jobs: dict[str, EmitJob] = {}
    for framework in FRAMEWORKS:
        for name, changes in {**COMMON, **OWN[framework]}.items():
            jobs[f"{framework} {name}"] = make_job(framework=framework, **changes)
        jobs[f"{framework} lora"] = make_job(framework=framework, job={"adapter": LORA})
        jobs[f"{framework} qlora"] = make_job(framework=framework, job={"adapter": {**LORA, "kind": "qlora"}})
        jobs[f"{framework} qlora 8"] = make_job(framework=framework, job={"adapter": {"kind": "qlora", "base_bits": 8}})
        jobs[f"{framework} moe"] = make_job(framework=framework, model=tiny_llama(moe=True), job={"hf_config": TINY_MIXTRAL})
        jobs[f"{framework} shape only"] = make_job(framework=framework, job={"hf_config": None, "hf_id": None})
        jobs[f"{framework} name only"] = make_job(framework=framework, job={"hf_config": None, "figures": {}})
        jobs[f"{framework} at a commit"] = make_job(framework=framework, job={"revision": "c0ffee" * 6 + "c0ff"})
        jobs[f"{framework} name at a commit"] = make_job(framework=framework, job={"hf_config": None, "revision": "c0ffee" * 6 + "c0ff"})
        jobs[f"{framework} unplanned"] = make_job(framework=framework, job={"planned_allocated_bytes": None})
    return jobs
