"""Decoders with a mixture of experts and plain grouped attention: each family is a row of rules.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Moe, Role, Weight
from app.domain.model.weights import linear
from app.ingest.hf_config import windows
from app.ingest.hf_config.fields import MAX_LAYERS, Fields
from app.ingest.hf_config.outline import Dims
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import DecoderRules, MoeRules, build

_BIAS = "attention_bias"
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_LOCAL = MoeRules(count=("num_local_experts",), width=("intermediate_size",))


def after_dense(f: Fields, num_layers: int) -> tuple[bool, ...]:
    """Mixtures from layer first_k_dense_replace on, or by the config's mlp_layer_types."""
    types = f.texts("mlp_layer_types", length=num_layers)
    if types is not None:
        return tuple(kind == "sparse" for kind in types)
    first = f.integer("first_k_dense_replace", default=0, low=0, high=MAX_LAYERS)
    return tuple(i >= first for i in range(num_layers))


def shared_by_count(f: Fields) -> int:
    """n_shared_experts experts of the routed width."""
    count = f.optional("n_shared_experts", "num_shared_experts", low=0, high=MAX_LAYERS)
    return (count or 0) * f.required("moe_intermediate_size")


def qwen_sparse(f: Fields, num_layers: int) -> tuple[bool, ...]:
    """Qwen: every decoder_sparse_step-th layer but those in mlp_only_layers."""
    step = f.integer("decoder_sparse_step", default=1)
    dense = set(f.integers("mlp_only_layers") or ())
    some = f.required("num_experts", low=0) > 0
    return tuple(some and i not in dense and (i + 1) % step == 0 for i in range(num_layers))


def _ernie_sparse(f: Fields, num_layers: int) -> tuple[bool, ...]:
    first = f.integer("moe_layer_start_index", default=0, low=0)
    end = f.raw("moe_layer_end_index")
    last = num_layers - 1 if end in (None, -1) else f.integer("moe_layer_end_index", low=0)
    step = f.integer("moe_layer_interval", default=1)
    return tuple(first <= i <= last and (i + 1) % step == 0 for i in range(num_layers))


def _ernie_shared(f: Fields) -> int:
    count = f.optional("moe_num_shared_experts", low=0, high=MAX_LAYERS)
    return (count or 0) * f.required("moe_intermediate_size")


def _ernie_selection(moe: Moe) -> tuple[Weight, ...]:
    return (Weight("moe_statics.e_score_correction_bias", (1, moe.num_experts), Role.OTHER),)


def _hunyuan_shared(f: Fields) -> int:
    """One shared expert of intermediate_size, or num_shared_expert of them where the config counts them."""
    listed = f.raw("num_shared_expert")
    count = next(iter(f.integers("num_shared_expert") or (1,))) if isinstance(listed, list) else None
    return f.required("intermediate_size") * (count or f.integer("num_shared_expert", default=1))


def _after_count(f: Fields, num_layers: int) -> tuple[bool, ...]:
    first = f.integer("num_dense_layers", default=1, low=0, high=MAX_LAYERS)
    return tuple(i >= first for i in range(num_layers))


def _output_gate(_f: Fields, dims: Dims) -> tuple[Weight, ...]:
    return linear("gate_proj", dims.num_heads * dims.head_dim, dims.hidden_size)


def _expert_bias(moe: Moe) -> tuple[Weight, ...]:
    return (Weight("expert_bias", (moe.num_experts,), Role.OTHER),)


MIXTURES: dict[str, DecoderRules] = {
    "mixtral": DecoderRules(prefix="Mixtral", windows=windows.sliding, moe=_LOCAL),
    "qwen2_moe": DecoderRules(
        prefix="Qwen2Moe",
        qkv_bias="qkv_bias",
        windows=windows.late,
        moe=MoeRules(
            shared=lambda f: f.required("shared_expert_intermediate_size", low=0),
            sparse=qwen_sparse,
            shared_gate=True,
        ),
    ),
    "qwen3_moe": DecoderRules(
        prefix="Qwen3Moe",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="head",
        windows=windows.switched,
        moe=MoeRules(sparse=qwen_sparse),
    ),
    "olmoe": DecoderRules(prefix="Olmoe", qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="width", moe=MoeRules(width=("intermediate_size",))),
    "flex_olmo": DecoderRules(
        prefix="FlexOlmo",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="width",
        norm_names=_POST_NORMS,
        moe=MoeRules(width=("intermediate_size",)),
    ),
    "phimoe": DecoderRules(
        prefix="Phimoe",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        head_bias="lm_head_bias",
        norm="layer",
        norm_bias=True,
        windows=windows.sliding,
        moe=_LOCAL,
    ),
    "gpt_oss": DecoderRules(
        prefix="GptOss",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        windows=windows.every(2),
        per_head=("sinks",),
        moe=MoeRules(
            count=("num_local_experts",),
            width=("intermediate_size",),
            router_bias=True,
            transposed=True,
            expert_bias=True,
        ),
    ),
    "glm4_moe": DecoderRules(
        prefix="Glm4Moe",
        qkv_bias=_BIAS,
        qk_norm="head",
        qk_norm_if="use_qk_norm",
        moe=MoeRules(count=("n_routed_experts",), shared=shared_by_count, sparse=after_dense),
    ),
    "dots1": DecoderRules(
        prefix="Dots1",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="head",
        windows=windows.from_first,
        moe=MoeRules(count=("n_routed_experts",), shared=shared_by_count, sparse=after_dense),
    ),
    "ernie4_5_moe": DecoderRules(
        prefix="Ernie4_5_Moe",
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        head_bias="use_bias",
        moe=MoeRules(
            shared_bias="use_bias",
            count=("moe_num_experts",),
            top_k=("moe_k",),
            shared=_ernie_shared,
            sparse=_ernie_sparse,
            also=_ernie_selection,
        ),
    ),
    "granitemoe": DecoderRules(prefix="GraniteMoe", qkv_bias=_BIAS, out_bias=_BIAS, moe=_LOCAL),
    "hunyuan_v1_moe": DecoderRules(
        prefix="HunYuanMoEV1",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="head",
        moe=MoeRules(
            count=("num_experts",),
            top_k=("moe_topk",),
            width=("moe_intermediate_size", "intermediate_size"),
            shared=_hunyuan_shared,
        ),
    ),
    "solar_open": DecoderRules(
        prefix="SolarOpen",
        qkv_bias=_BIAS,
        moe=MoeRules(count=("n_routed_experts",), shared=shared_by_count),
    ),
    "exaone_moe": DecoderRules(
        prefix="ExaoneMoe",
        qk_norm="head",
        windows=windows.every(4, "sliding_window_pattern"),
        moe=MoeRules(shared=shared_by_count, sparse=after_dense),
    ),
    "afmoe": DecoderRules(
        prefix="Afmoe",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="head",
        norm_names=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        windows=windows.every(4, "global_attn_every_n_layers"),
        also=_output_gate,
        moe=MoeRules(shared=shared_by_count, sparse=_after_count, also=_expert_bias),
    ),
    "minimax_m2": DecoderRules(prefix="MiniMaxM2", qk_norm="width", moe=_LOCAL),
}


def mixture(f: Fields) -> Architecture:
    """A mixture-of-experts decoder described by a row of ``MIXTURES``."""
    return build(f, MIXTURES[f.model_type])


for _name, _rules in MIXTURES.items():
    family(_name, classes=(f"{_rules.prefix}ForCausalLM",))(mixture)
