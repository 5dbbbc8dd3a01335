"""What running the trained model needs."""

from __future__ import annotations

from app.domain.checkpoint import terms
from app.domain.checkpoint.result import Inference
from app.domain.checkpoint.situation import Situation
from app.domain.checkpoint.terms import line
from app.domain.model.architecture import Architecture, Attention

BYTES_16_BIT = 2


def inference_of(case: Situation) -> Inference:
    """Weights and cache of one served copy, in 16 bits."""
    n = case.numbers
    # Adapters are merged into the base; modules trained beside it replace the base's.
    weights = line(terms.inference_weight_bytes, "parameters", "inference", params=n.total, bytes_each=BYTES_16_BIT)
    elements = cache_elements(case.model)
    cache = line(terms.token_cache_bytes, "activations", "inference", elements=elements, bytes_each=BYTES_16_BIT) if elements else None
    how = "The exported folder loads with from_pretrained and in servers that read transformers models."
    if case.adapted:
        how = "The adapter loads over its base with peft; merge_and_unload() makes one model of both, which every server reads."
    elif case.settings.framework == "deepspeed" and case.stage > 0:
        how = "Put the base model's config.json and tokenizer beside the exported safetensors; they then load with from_pretrained."
    return Inference(weights=weights, cache_per_token=cache, how=how)


def cache_elements(model: Architecture) -> int:
    """Elements of keys and values that one token adds, over all layers of a model that generates; 0 for others."""
    if model.kind not in ("decoder", "ssm", "multimodal", "encoder_decoder"):
        return 0
    return sum(_of(s.block.attention) * s.count for s in model.stacks if s.part == "main" and s.block.attention)


def _of(attention: Attention) -> int:
    if attention.kind == "linear" or not attention.causal:
        return 0
    if attention.kind == "latent":
        return attention.latent_dim
    return attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)
