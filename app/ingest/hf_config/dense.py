"""Dense decoders of the Llama kind: each family is a row of rules.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture
from app.ingest.hf_config import windows
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import DecoderRules, build

_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_GLM4_NORMS = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
_BIAS = "attention_bias"

DENSE: dict[str, DecoderRules] = {
    "llama": DecoderRules(prefix="Llama", qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias="mlp_bias"),
    "mistral": DecoderRules(prefix="Mistral", windows=windows.sliding),
    "ministral": DecoderRules(prefix="Ministral", windows=windows.by_types_or_sliding),
    "ministral3": DecoderRules(prefix="Ministral3", windows=windows.sliding),
    "qwen2": DecoderRules(prefix="Qwen2", qkv_bias=True, windows=windows.late),
    "qwen3": DecoderRules(prefix="Qwen3", qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="head", windows=windows.late),
    "smollm3": DecoderRules(prefix="SmolLM3", qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias="mlp_bias", windows=windows.without_rope),
    "seed_oss": DecoderRules(
        prefix="SeedOss",
        qkv_bias=_BIAS,
        out_bias="attention_out_bias",
        mlp_bias="mlp_bias",
        dropout=("attention_dropout", "residual_dropout"),
    ),
    "arcee": DecoderRules(prefix="Arcee", qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias="mlp_bias", gated=False),
    "helium": DecoderRules(prefix="Helium", qkv_bias=_BIAS, mlp_bias="mlp_bias"),
    "granite": DecoderRules(prefix="Granite", qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias="mlp_bias"),
    "internlm3": DecoderRules(prefix="InternLM3", qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "ernie4_5": DecoderRules(prefix="Ernie4_5", qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "hunyuan_v1_dense": DecoderRules(prefix="HunYuanDenseV1", qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias="mlp_bias", qk_norm="head"),
    "cwm": DecoderRules(prefix="Cwm", mlp_bias="mlp_bias", windows=windows.every(4, first_full=True)),
    "granite_swa": DecoderRules(
        prefix="GraniteSWA",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        mlp_bias="mlp_bias",
        windows=windows.every(4, first_full=True),
        per_head=("sinks",),
    ),
    "gemma": DecoderRules(prefix="Gemma", qkv_bias=_BIAS, out_bias=_BIAS),
    "vaultgemma": DecoderRules(
        prefix="VaultGemma",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        windows=windows.every(2),
        norm_names=("input_layernorm", "pre_feedforward_layernorm"),
    ),
    "gemma2": DecoderRules(prefix="Gemma2", qkv_bias=_BIAS, out_bias=_BIAS, norm_names=_FOUR_NORMS, windows=windows.every(2)),
    "gemma3_text": DecoderRules(
        prefix="Gemma3",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="head",
        norm_names=_FOUR_NORMS,
        windows=windows.every(6, "sliding_window_pattern"),
    ),
    "olmo": DecoderRules(prefix="Olmo", qkv_bias=_BIAS, out_bias=_BIAS, norm="none"),
    "olmo2": DecoderRules(prefix="Olmo2", qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="width", norm_names=_POST_NORMS),
    "olmo3": DecoderRules(
        prefix="Olmo3",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="width",
        norm_names=_POST_NORMS,
        windows=windows.every(4),
    ),
    "exaone4": DecoderRules(
        prefix="Exaone4",
        qk_norm="head",
        norm_names=_POST_NORMS,
        windows=windows.every(4, "sliding_window_pattern"),
    ),
    "phi3": DecoderRules(
        prefix="Phi3",
        fused_qkv="qkv_proj",
        fused_mlp=True,
        windows=windows.sliding,
        dropout=("attention_dropout", "resid_pdrop", "embd_pdrop"),
    ),
    "glm": DecoderRules(prefix="Glm", qkv_bias=_BIAS, fused_mlp=True),
    "glm4": DecoderRules(prefix="Glm4", qkv_bias=_BIAS, fused_mlp=True, norm_names=_GLM4_NORMS),
    "nemotron": DecoderRules(
        prefix="Nemotron",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        mlp_bias="mlp_bias",
        gated=False,
        norm="layer",
        norm_bias=True,
        dropout=("attention_dropout", "hidden_dropout"),
    ),
    "starcoder2": DecoderRules(
        prefix="Starcoder2",
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        gated=False,
        mlp_names=("c_fc", "c_proj"),
        norm="layer",
        norm_bias=True,
        windows=windows.sliding,
        dropout=("attention_dropout", "residual_dropout", "embedding_dropout"),
    ),
}


def dense(f: Fields) -> Architecture:
    """A dense decoder described by a row of ``DENSE``."""
    return build(f, DENSE[f.model_type])


family(*DENSE)(dense)
for _name, _rules in DENSE.items():
    family(_name, classes=(f"{_rules.prefix}ForCausalLM",))(dense)
