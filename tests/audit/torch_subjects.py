"""Subjects for the tests of rules about FSDP, accelerate and the Trainer."""

from __future__ import annotations

from typing import Any

import app.audit.torch
from app.audit.finding import Finding
from app.audit.registry import RULES, audit
from app.audit.subject import ClusterFacts, Kind, ModelFacts, Subject, TrainingFacts

RELEASES = {"accelerate": "1.15.0", "transformers": "5.24.0", "torch": "2.13.0", "deepspeed": "0.19.8"}
OWN = tuple(sorted(name for name, entry in RULES.items() if entry.check.__module__.startswith(app.audit.torch.__name__)))
MODEL: dict[str, Any] = {
    "name": "llama-3.1-8b",
    "family": "llama",
    "total_params": 8_030_261_248,
    "trainable_params": 8_030_261_248,
    "active_params": None,
    "largest_param_numel": 128256 * 4096,
    "largest_trainable_numel": 128256 * 4096,
    "hidden_size": 4096,
    "num_layers": 32,
    "vocab_size": 128256,
    "num_heads": 32,
    "num_kv_heads": 8,
    "block_classes": ("LlamaDecoderLayer",),
    "moe_class": "",
    "is_moe": False,
    "multimodal": False,
    "encoder_decoder": False,
    "hf_class": "LlamaForCausalLM",
}
QLORA = {"adapter": "qlora", "base_bits": 4, "total_params": 69_000_000_000, "trainable_params": 207_000_000}
EXPERTS = {
    "is_moe": True,
    "moe_class": "MixtralSparseMoeBlock",
    "block_classes": ("MixtralDecoderLayer",),
    "num_experts": 8,
    "largest_param_numel": 8 * 2 * 14336 * 4096,
}
CLUSTER: dict[str, Any] = {
    "gpu_name": "A100 80GB",
    "gpu_architecture": "ampere",
    "vendor": "nvidia",
    "supports": frozenset({"fp16", "bf16"}),
    "gpu_bytes": 80 * 10**9,
    "gpus_per_node": 8,
    "nodes": 1,
    "host_bytes": 1000 * 10**9,
    "inter_node_bytes_per_s": None,
    "nvlink": True,
}
TRAINING: dict[str, Any] = {
    "seq_len": 4096,
    "micro_batch": 1,
    "grad_accum": None,
    "global_batch": None,
    "precision": "bf16",
    "optimizer": "adamw",
    "activation_checkpointing": None,
    "compile": False,
    "attention": "flash",
}


def model(**changes: Any) -> ModelFacts:
    """Llama 3.1 8B, changed."""
    return ModelFacts(**{**MODEL, **changes})


def cluster(**changes: Any) -> ClusterFacts:
    """One node of eight A100, changed."""
    return ClusterFacts(**{**CLUSTER, **changes})


def training(**changes: Any) -> TrainingFacts:
    """A recipe in bf16, changed."""
    return TrainingFacts(**{**TRAINING, **changes})


def subject(kind: Kind, config: dict[str, Any], launcher: Any = "accelerate", **more: Any) -> Subject:
    """A file with what is known of its job."""
    return Subject(kind=kind, config=config, launcher=launcher, releases=RELEASES, **more)


def found(given: Subject) -> dict[str, Finding]:
    """Findings of the rules about torch by id, the last of each."""
    return {finding.id: finding for finding in audit(given).findings if finding.id in OWN}


def launch(block: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """A whole accelerate.yaml of eight processes under FSDP2 with whole blocks, changed."""
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "num_processes": 8, "num_machines": 1}
    fsdp = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **(block or {})}
    return {**config, "fsdp_config": {key: value for key, value in fsdp.items() if value is not ...}, **top}


def deepspeed(block: dict[str, Any], **top: Any) -> dict[str, Any]:
    """A whole accelerate.yaml of eight processes under DeepSpeed."""
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": 8, "num_machines": 1}
    return {**config, "deepspeed_config": block, **top}


def trainer(block: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    """TrainingArguments with FSDP on, changed."""
    return {"output_dir": "out", "fsdp": True, "fsdp_config": block or {}, **arguments}


def mesh(**sizes: Any) -> dict[str, Any]:
    """A parallelism_config with its prefix."""
    return {"parallelism_config": {f"parallelism_config_{name}": value for name, value in sizes.items()}}
