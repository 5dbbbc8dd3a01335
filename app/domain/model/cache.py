"""The cache of keys and values that generation keeps for each token."""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Attention


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
