"""A model of the same family small enough to try an emitted script on a laptop: what its config.json must say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LAYERS, VOCAB, WIDTH_PER_HEAD, MAX_HEADS, EXPERTS = 2, 512, 128, 4, 4

_HEADS = ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "n_heads")
_WIDTH = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim")
_FFN = ("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size")
_LAYERS = (
    "num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "depth",
    "n_layers",
)  # fmt: skip
_FIXED: dict[str, Any] = {
    "vocab_size": VOCAB, "num_experts": EXPERTS, "num_local_experts": EXPERTS, "n_routed_experts": EXPERTS,
    "moe_num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_k": 2, "n_group": 1, "topk_group": 1, "n_groups": 1,
    "first_k_dense_replace": 1, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "q_lora_rank": 64,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "state_size": 16,
    "num_nextn_predict_layers": 0, "full_attention_interval": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
    "intermediate_size_mlp": 256,
    "lru_width": 256, "embedding_size": 64, "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": VOCAB,
}  # fmt: skip
_TOKENS = (
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "image_token_id", "image_token_index",
    "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id", "boi_token_index",
    "eoi_token_index", "sep_token_id", "cls_token_id", "unk_token_id", "mask_token_id",
)  # fmt: skip
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
_LISTS = (
    "layer_types",
    "mlp_layer_types",
    "no_rope_layers",
    "layers_block_type",
    "block_types",
    "hybrid_override_pattern",
)


def tiny_overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys to change in a config.json so that its family stays and its size goes.

    Head size stays where the family derives it from the width, for rotary sections are cut to fit it.
    """
    out: dict[str, Any] = {key: value for key, value in _FIXED.items() if config.get(key) is not None}
    out |= {key: LAYERS for key in _LAYERS if isinstance(config.get(key), int)}
    out |= {**_widths(config), **_few_kv_heads(config)}
    out |= {key: VOCAB - 1 - place for place, key in enumerate(_TOKENS) if isinstance(config.get(key), int)}
    out |= {key: config[key][:LAYERS] for key in _LISTS if isinstance(config.get(key), list | str)}
    if isinstance(config.get("attention_types"), list):
        out["attention_types"] = [[["global"], LAYERS]]
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, Mapping):
            # Such parts often leave out what their class has by default, and that is large.
            out[key] = {**value, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, **tiny_overrides(value)}
    return {key: value for key, value in out.items() if config.get(key) != value}


def _widths(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = next((config[key] for key in _HEADS if isinstance(config.get(key), int)), None)
    width = next((config[key] for key in _WIDTH if isinstance(config.get(key), int)), None)
    if heads is None or width is None:
        return {key: WIDTH_PER_HEAD for key in _WIDTH if isinstance(config.get(key), int)}
    few = min(MAX_HEADS, heads)
    small = few * (width // heads)
    out: dict[str, Any] = {key: few for key in _HEADS if isinstance(config.get(key), int)}
    out |= {key: small for key in _WIDTH if isinstance(config.get(key), int)}
    out |= {key: 2 * small for key in _FFN if isinstance(config.get(key), int)}
    if "num_attention_heads" in config and "num_key_value_heads" not in config:
        out["num_key_value_heads"] = few  # the class's own default is for its full size
    return out


def _few_kv_heads(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = next((config[key] for key in _HEADS if isinstance(config.get(key), int)), None)
    return {
        key: min(MAX_HEADS, heads) if config[key] == heads else min(2, config[key]) for key in _KV_HEADS if isinstance(config.get(key), int)
    }
