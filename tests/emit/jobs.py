"""Emit jobs built by hand, for the tests of the emitters and for the verify suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Moe, Role, Stack, Weight
from app.domain.model.weights import embedding, experts, gated_mlp, grouped_attention, head, norm
from app.domain.plan import Settings
from app.emit.job import EmitJob

TINY_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
TINY_MIXTRAL = {
    **TINY_LLAMA,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
DTYPES = {"bf16": ("bf16", "bf16"), "fp16": ("fp16", "fp16"), "fp32": ("fp32", "fp32"), "fp8": ("bf16", "bf16")}


def tiny_llama(*, hidden_size: int = 64, num_layers: int = 2, vocab_size: int = 256, tied: bool = False, moe: bool = False) -> Architecture:
    """A Llama or Mixtral of a few thousand parameters, tensor by tensor."""
    attention = Attention(num_heads=4, num_kv_heads=2, head_dim=hidden_size // 4, v_head_dim=hidden_size // 4)
    named = "MixtralSparseMoeBlock"
    routed = Moe(num_experts=4, experts_per_token=2, expert_ffn_hidden_size=2 * hidden_size, class_name=named) if moe else None
    ffn = experts(hidden_size, routed) if routed else gated_mlp(hidden_size, 2 * hidden_size)
    weights = (*grouped_attention(hidden_size, attention), *ffn)
    block = Block(
        hidden_size=hidden_size,
        weights=(*weights, *norm("input_layernorm", hidden_size), *norm("post_attention_layernorm", hidden_size)),
        attention=attention,
        mlp=None if moe else Mlp(ffn_hidden_size=2 * hidden_size, gated=True),
        moe=routed,
        class_name="MixtralDecoderLayer" if moe else "LlamaDecoderLayer",
    )
    outside = (embedding("embed_tokens", vocab_size, hidden_size), Weight("norm", (hidden_size,), Role.NORM))
    return Architecture(
        name="tiny-mixtral" if moe else "tiny-llama",
        family="mixtral" if moe else "llama",
        kind="decoder",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        tied_embeddings=tied,
        stacks=(Stack(block=block, count=num_layers),),
        weights=outside if tied else (*outside, *head(vocab_size, hidden_size)),
        max_seq_len=128,
        model_class="MixtralForCausalLM" if moe else "LlamaForCausalLM",
    )


def make_settings(**changes: Any) -> Settings:
    """Settings of a plan for two nodes of four GPUs; dtypes follow ``framework`` and ``precision`` unless given."""
    framework, precision = changes.get("framework", "deepspeed"), changes.get("precision", "bf16")
    low, grad = DTYPES[precision]
    torch_native = framework != "deepspeed"
    defaults: dict[str, Any] = {
        "framework": framework,
        "strategy": {"deepspeed": "zero2", "fsdp2": "fsdp_full", "ddp": "ddp"}[framework],
        "world_size": 8,
        "gpus_per_node": 4,
        "nodes": 2,
        "dp_replicate": 1,
        "dp_shard": 8,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "sequence_parallel": 1,
        "expert_parallel": 1,
        "shard_group_size": 8,
        "hpz_group_size": 1,
        "seq_len": 64,
        "micro_batch": 2,
        "grad_accum": 2,
        "global_batch": 32,
        "activation_checkpointing": "none",
        "activation_offload": False,
        "offload_optimizer": "none",
        "offload_parameters": "none",
        "precision": precision,
        "param_dtype": "fp32" if torch_native else low,
        "grad_dtype": "fp32" if torch_native else grad,
        "reduce_dtype": "fp32" if torch_native else low,
        "master_weights": precision != "fp32",
        "optimizer": "adamw",
        "optimizer_implementation": "fused" if torch_native else "deepspeed_fused",
        "optimizer_state_dtype": "fp32",
        "optimizer_in_backward": False,
        "attention": "flash",
        "fused_loss": False,
        "compile": False,
        "reduce_bucket_numel": 50_000_000,
        "prefetch_bucket_numel": 50_000_000,
        "param_persistence_numel": 100_000,
        "max_live_numel": 1_000_000_000,
        "max_reuse_distance_numel": 1_000_000_000,
        "sub_group_numel": 100_000_000,
        "overlap_comm": True,
    }
    return Settings(**{**defaults, **changes})


def make_job(*, model: Architecture | None = None, job: dict[str, Any] | None = None, **changes: Any) -> EmitJob:
    """An emit job for a tiny Llama whose config.json is known; ``changes`` go to the settings, ``job`` to the job."""
    base = EmitJob(
        settings=make_settings(**changes),
        model=model or tiny_llama(),
        hf_id="example/tiny-llama",
        hf_config=TINY_LLAMA,
        adapter=None,
        engine_version="0.4.0",
        figures={"GPU": "H100 SXM 80 GB", "Peak memory": "61.4 GiB of 79.6 GiB"},
        planned_allocated_bytes=61 * 2**30,
        planned_reserved_bytes=66 * 2**30,
    )
    return replace(base, **(job or {}))
