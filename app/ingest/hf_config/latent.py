"""Decoders with multi-head latent attention: DeepSeek V2 and V3, Kimi K2, Moonlight, GLM-4.7-Flash, MiniCPM3.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Weight
from app.domain.model.weights import gated_mlp, latent_attention, linear, norm, norms
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from app.ingest.hf_config.mixture import after_dense, shared_by_count
from app.ingest.hf_config.outline import Outline, decoder, group
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import MoeRules

_MOE = MoeRules(count=("n_routed_experts",), shared=shared_by_count, sparse=after_dense)


@dataclass(frozen=True, slots=True)
class _Latent:
    attention: Attention
    q_rank: int | None
    rope_dim: int


def _latent(f: Fields) -> _Latent:
    heads = f.required("num_attention_heads", high=MAX_WIDTH)
    rank = f.required("kv_lora_rank", high=MAX_WIDTH)
    rope_dim = f.required("qk_rope_head_dim", high=MAX_WIDTH)
    nope_dim = f.required("qk_nope_head_dim", high=MAX_WIDTH)
    attention = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=nope_dim + rope_dim,
        v_head_dim=f.required("v_head_dim", high=MAX_WIDTH),
        kind="latent",
        latent_dim=rank + rope_dim,
    )
    return _Latent(attention, f.optional("q_lora_rank", high=MAX_WIDTH), rope_dim)


def _build(f: Fields, prefix: str, moe_rules: MoeRules | None, also: tuple[Weight, ...] = ()) -> Architecture:
    hidden = f.required("hidden_size", high=MAX_WIDTH)
    layers = f.required("num_hidden_layers", high=MAX_LAYERS)
    latent = _latent(f)
    bias = f.flag("attention_bias")

    def block(sparse: bool) -> Block:
        moe = moe_rules.read(f) if moe_rules and sparse else None
        ffn = None if moe else f.required("intermediate_size")
        feed_forward = moe_rules.weights(f, hidden, moe) if moe_rules and moe else gated_mlp(hidden, ffn or 1)
        return Block(
            hidden_size=hidden,
            weights=(
                *latent_attention(hidden, latent.attention, q_rank=latent.q_rank, rope_dim=latent.rope_dim, bias=bias),
                *also,
                *feed_forward,
                *norms(("input_layernorm", "post_attention_layernorm"), hidden),
            ),
            attention=latent.attention,
            mlp=Mlp(ffn_hidden_size=ffn, gated=True) if ffn else None,
            moe=moe,
            dropout=f.number("attention_dropout") > 0,
            class_name=f"{prefix}DecoderLayer",
        )

    sparse = moe_rules.sparse(f, layers) if moe_rules else (False,) * layers
    outline = Outline(
        prefix=prefix,
        hidden_size=hidden,
        vocab_size=f.required("vocab_size", high=MAX_VOCAB),
        final=norm("norm", hidden),
    )
    return decoder(f, outline, group(sparse, block))


@family("deepseek_v3", "kimi_k2", classes=("DeepseekV3ForCausalLM",))
def deepseek_v3(f: Fields) -> Architecture:
    """DeepSeek V3, R1, Kimi K2, Moonlight. The selection bias is a buffer and is not counted."""
    return _build(f.retyped("deepseek_v3"), "DeepseekV3", _MOE)


@family("deepseek_v2", classes=("DeepseekV2ForCausalLM",))
def deepseek_v2(f: Fields) -> Architecture:
    """DeepSeek V2 and V2-Lite (without query compression)."""
    return _build(f, "DeepseekV2", _MOE)


@family("deepseek_v32", "glm_moe_dsa", classes=("DeepseekV32ForCausalLM",))
def sparse_latent(f: Fields) -> Architecture:
    """DeepSeek V3.2 and GLM-5: latent attention over the tokens an indexer of its own picks."""
    if any(kind != "full" for kind in f.texts("indexer_types") or ()) or f.integer("index_topk_freq", default=1) > 1:
        raise f.unsupported("indexer_types", "layers that share an indexer are not read")
    hidden, rank = f.required("hidden_size", high=MAX_WIDTH), f.required("q_lora_rank", high=MAX_WIDTH)
    heads, size = f.integer("index_n_heads", high=MAX_WIDTH), f.integer("index_head_dim", high=MAX_WIDTH)
    indexer = (
        *linear("indexer.wq_b", heads * size, rank),
        *linear("indexer.wk", size, hidden),
        *norm("indexer.k_norm", size, bias=True),
        *linear("indexer.weights_proj", heads, hidden),
    )
    return _build(f, "DeepseekV32" if f.model_type == "deepseek_v32" else "GlmMoeDsa", _MOE, indexer)


@family("glm4_moe_lite", classes=("Glm4MoeLiteForCausalLM",))
def glm4_moe_lite(f: Fields) -> Architecture:
    """GLM-4.7-Flash: the first layer dense unless mlp_layer_types says otherwise."""

    def first_dense(fields: Fields, num_layers: int) -> tuple[bool, ...]:
        if fields.texts("mlp_layer_types") is not None or fields.has("first_k_dense_replace"):
            return after_dense(fields, num_layers)
        return (False,) + (True,) * (num_layers - 1)

    rules = MoeRules(count=("n_routed_experts",), shared=shared_by_count, sparse=first_dense)
    return _build(f, "Glm4MoeLite", rules)


@family("minicpm3", classes=("MiniCPM3ForCausalLM",))
def minicpm3(f: Fields) -> Architecture:
    """MiniCPM3: latent attention without experts."""
    return _build(f, "MiniCPM3", None)
