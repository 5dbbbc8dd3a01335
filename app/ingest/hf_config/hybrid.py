"""Hybrids of attention and state-space layers: Jamba, Bamba, Falcon-H1, Granite 4.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Block, Mlp, Moe, Weight
from app.domain.model.weights import experts, fused_gated_mlp, gated_mlp, grouped_attention, norm, norms
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.mamba import Mamba1, Mamba2
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import MoeRules
from app.ingest.hf_config.ssm import time_step_rank

_NORMS = ("input_layernorm", "pre_ff_layernorm")


def mamba2_of(f: Fields, hidden: int, inner: int, *, gated_norm: bool = True) -> Mamba2:
    """The Mamba-2 mixer of the families that prefix its keys with ``mamba_``."""
    heads = f.integer("mamba_n_heads", default=128, high=MAX_WIDTH)
    return Mamba2(
        hidden_size=hidden,
        inner_size=inner,
        num_heads=heads,
        groups=f.integer("mamba_n_groups", default=1),
        state_size=f.integer("mamba_d_state", default=256),
        conv_kernel=f.integer("mamba_d_conv", default=4),
        bias=f.flag("mamba_proj_bias"),
        conv_bias=f.flag("mamba_conv_bias", default=True),
        gated_norm=gated_norm,
    )


def _outline(prefix: str, dims: Dims, final: str = "final_layernorm") -> Outline:
    return Outline(prefix=prefix, hidden_size=dims.hidden_size, vocab_size=dims.vocab_size, final=norm(final, dims.hidden_size))


@family("jamba", classes=("JambaForCausalLM",))
def jamba(f: Fields) -> Architecture:
    """Jamba: attention and experts at their own periods, Mamba with three inner norms elsewhere."""
    dims = Dims.read(f)
    hidden = dims.hidden_size
    rank = time_step_rank(f, "mamba_dt_rank", hidden)
    state = f.integer("mamba_d_state", default=16)
    mixer = Mamba1(
        hidden_size=hidden,
        inner_size=f.integer("mamba_expand", default=2, high=1000) * hidden,
        state_size=state,
        rank=rank,
        conv_kernel=f.integer("mamba_d_conv", default=4),
        bias=f.flag("mamba_proj_bias"),
        conv_bias=f.flag("mamba_conv_bias", default=True),
    )
    inner_norms = norm("dt_layernorm", rank) + norms(("b_layernorm", "c_layernorm"), state)
    rules = MoeRules(width=("intermediate_size",))
    ffn = f.required("intermediate_size")

    def block(attends: bool, mixes: bool) -> Block:
        moe = rules.read(f) if mixes else None
        mixing = grouped_attention(hidden, dims.attention()) if attends else mixer.weights() + inner_norms
        return Block(
            hidden_size=hidden,
            weights=(
                *mixing,
                *(rules.weights(f, hidden, moe) if moe else gated_mlp(hidden, ffn)),
                *norms(_NORMS, hidden),
            ),
            attention=dims.attention() if attends else None,
            ssm=None if attends else mixer.ssm(),
            mlp=None if moe else Mlp(ffn_hidden_size=ffn, gated=True),
            moe=moe,
            class_name="JambaAttentionDecoderLayer" if attends else "JambaMambaDecoderLayer",
        )

    many = f.required("num_experts") > 1
    attends = _periodic(f, "attn_layer", dims.num_layers, (8, 4))
    mixes = _periodic(f, "expert_layer", dims.num_layers, (2, 1))
    kinds = [(a, m and many) for a, m in zip(attends, mixes, strict=True)]
    return decoder(f, _outline("Jamba", dims), group(kinds, block))


def _periodic(f: Fields, prefix: str, num_layers: int, default: tuple[int, int]) -> tuple[bool, ...]:
    period = f.integer(f"{prefix}_period", default=default[0])
    offset = f.integer(f"{prefix}_offset", default=default[1], low=0)
    return tuple(i % period == offset for i in range(num_layers))


@family("bamba", classes=("BambaForCausalLM",))
def bamba(f: Fields) -> Architecture:
    """Bamba: attention at attn_layer_indices, Mamba-2 elsewhere."""
    dims = Dims.read(f)
    hidden = dims.hidden_size
    inner = f.integer("mamba_expand", default=2, high=1000) * hidden
    mixer = mamba2_of(f, hidden, inner)
    bias = f.flag("attention_bias")
    ffn = f.required("intermediate_size")

    def block(attends: bool) -> Block:
        attention = grouped_attention(hidden, dims.attention(), qkv_bias=bias, out_bias=bias)
        return Block(
            hidden_size=hidden,
            weights=(
                *(attention if attends else mixer.weights()),
                *gated_mlp(hidden, ffn, bias=f.flag("mlp_bias")),
                *norms(_NORMS, hidden),
            ),
            attention=dims.attention() if attends else None,
            ssm=None if attends else mixer.ssm(),
            mlp=Mlp(ffn_hidden_size=ffn, gated=True),
            class_name="BambaDecoderLayer",
        )

    indices = set(f.integers("attn_layer_indices") or ())
    return decoder(f, _outline("Bamba", dims), group([i in indices for i in range(dims.num_layers)], block))


@family("falcon_h1", classes=("FalconH1ForCausalLM",))
def falcon_h1(f: Fields) -> Architecture:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    dims = Dims.read(f)
    hidden = dims.hidden_size
    inner = f.optional("mamba_d_ssm") or f.integer("mamba_expand", default=2, high=1000) * hidden
    mixer = mamba2_of(f, hidden, inner, gated_norm=f.flag("mamba_rms_norm"))
    bias = f.flag("attention_bias")
    ffn = f.required("intermediate_size")

    def block(_: str) -> Block:
        return Block(
            hidden_size=hidden,
            weights=(
                *mixer.weights(),
                *grouped_attention(hidden, dims.attention(), qkv_bias=bias, out_bias=bias),
                *gated_mlp(hidden, ffn, bias=f.flag("mlp_bias")),
                *norms(_NORMS, hidden),
            ),
            attention=dims.attention(),
            ssm=mixer.ssm(),
            mlp=Mlp(ffn_hidden_size=ffn, gated=True),
            class_name="FalconH1DecoderLayer",
        )

    return decoder(f, _outline("FalconH1", dims), group(["layer"] * dims.num_layers, block))


@family("granitemoehybrid", "granitemoeshared", classes=("GraniteMoeHybridForCausalLM",))
def granite_hybrid(f: Fields) -> Architecture:
    """Granite 4: experts beside an always-on shared feed-forward; Mamba-2 or attention by layer_types."""
    dims = Dims.read(f)
    hidden = dims.hidden_size
    hybrid = f.model_type == "granitemoehybrid"
    prefix = "GraniteMoeHybrid" if hybrid else "GraniteMoeShared"
    inner = f.integer("mamba_expand", default=2, high=1000) * hidden
    bias = f.flag("attention_bias")
    shared = f.required("shared_intermediate_size", low=0, high=MAX_WIDTH * 10)
    moe, feed_forward = _granite_experts(f, hidden, shared)

    def block(attends: bool) -> Block:
        attention = grouped_attention(hidden, dims.attention(), qkv_bias=bias, out_bias=bias)
        mixer = mamba2_of(f, hidden, inner) if not attends else None
        return Block(
            hidden_size=hidden,
            weights=(
                *(mixer.weights() if mixer else attention),
                *feed_forward,
                *norms(("input_layernorm", "post_attention_layernorm"), hidden),
            ),
            attention=dims.attention() if attends else None,
            ssm=mixer.ssm() if mixer else None,
            mlp=None if moe else Mlp(ffn_hidden_size=shared, gated=True),
            moe=moe,
            class_name=f"{prefix}DecoderLayer",
        )

    types = f.texts("layer_types", length=dims.num_layers) if hybrid else None
    kinds = [kind in ("attention", "full_attention") for kind in types] if types else [not hybrid] * dims.num_layers
    return decoder(f, _outline(prefix, dims, "norm"), group(kinds, block))


def _granite_experts(f: Fields, hidden: int, shared: int) -> tuple[Moe | None, tuple[Weight, ...]]:
    always = fused_gated_mlp(hidden, shared, ("input_linear", "output_linear")) if shared else ()
    count = f.optional("num_local_experts", low=0, high=MAX_LAYERS)
    if not count:
        return None, always
    moe = Moe(
        num_experts=count,
        experts_per_token=f.required("num_experts_per_tok", high=count),
        expert_ffn_hidden_size=f.required("intermediate_size"),
    )
    found = experts(hidden, moe) + always
    return replace(moe, shared_ffn_hidden_size=shared), found
