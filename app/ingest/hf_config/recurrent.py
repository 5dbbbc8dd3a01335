"""Decoders with other recurrent or convolutional mixers: RecurrentGemma, LFM2, MiniMax, RWKV-4.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Ssm, Stack, Weight
from app.domain.model.weights import conv, gated_mlp, grouped_attention, linear, norm, norms
from app.ingest.hf_config.classic import projections
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import MoeRules


@family("recurrent_gemma", classes=("RecurrentGemmaForCausalLM",))
def recurrent_gemma(f: Fields) -> Architecture:
    """RecurrentGemma (Griffin): gated linear recurrences and local attention; intermediate_size is both GLU halves."""
    dims = Dims.read(f)
    hidden = dims.hidden_size
    width = f.optional("lru_width", high=MAX_WIDTH) or hidden
    kernel = f.integer("conv1d_width", default=4)
    ffn = f.required("intermediate_size") // 2
    bias = f.flag("attention_bias")
    attention = dims.attention(f.optional("attention_window_size"))

    def block(kind: str) -> Block:
        attends = kind == "attention"
        mixing = grouped_attention(hidden, attention, qkv_bias=bias, out_bias=True)
        return Block(
            hidden_size=hidden,
            weights=(
                *(mixing if attends else _lru(hidden, width, dims.num_heads, kernel)),
                *gated_mlp(hidden, ffn, bias=True),
                *norms(("temporal_pre_norm", "channel_pre_norm"), hidden),
            ),
            attention=attention if attends else None,
            ssm=None if attends else Ssm(inner_size=width, state_size=1, conv_kernel=kernel),
            mlp=Mlp(ffn_hidden_size=ffn, gated=True),
            class_name="RecurrentGemmaDecoderLayer",
        )

    pattern = f.texts("block_types", "_block_types") or ("recurrent", "recurrent", "attention")
    kinds = [pattern[i % len(pattern)] for i in range(dims.num_layers)]
    outline = Outline(prefix="RecurrentGemma", hidden_size=hidden, vocab_size=dims.vocab_size, final=norm("final_norm", hidden))
    return decoder(f, outline, group(kinds, block))


def _lru(hidden: int, width: int, heads: int, kernel: int) -> tuple[Weight, ...]:
    size = width // heads
    return (
        *linear("linear_y", width, hidden, bias=True),
        *linear("linear_x", width, hidden, bias=True),
        *linear("linear_out", hidden, width, bias=True),
        *conv("conv_1d", (width, 1, kernel), bias=True),
        Weight("recurrent_param", (width,), Role.OTHER),
        Weight("gate_weight", (heads, size, size), Role.OTHER, 2),
        Weight("gate_bias", (heads, size), Role.BIAS, 2),
    )


@family("lfm2", "lfm2_moe", classes=("Lfm2ForCausalLM",))
def lfm2(f: Fields) -> Architecture:
    """LFM2: short gated convolutions with some attention; the MoE sibling keeps its first layers dense."""
    dims = Dims.read(f)
    hidden, rules = dims.hidden_size, MoeRules()
    mixes = f.model_type == "lfm2_moe"
    prefix = "Lfm2Moe" if mixes else "Lfm2"
    kernel, bias = f.integer("conv_L_cache", default=3), f.flag("conv_bias")
    ffn = f.required("intermediate_size", "block_ff_dim") if mixes else _lfm2_width(f)

    def block(attends: bool, sparse: bool) -> Block:
        moe = rules.read(f) if sparse else None
        mixing = (
            *conv("conv", (hidden, 1, kernel), bias=bias),
            *linear("in_proj", 3 * hidden, hidden, bias=bias),
            *linear("out_proj", hidden, hidden, bias=bias),
        )
        if attends:
            names = ("q_proj", "k_proj", "v_proj", "out_proj")
            mixing = projections(hidden, dims.attention(), names=names, bias=(False,) * 4)
            mixing += norms(("q_layernorm", "k_layernorm"), dims.head_dim)
        dense = (*linear("w1", ffn, hidden), *linear("w3", ffn, hidden), *linear("w2", hidden, ffn))
        return Block(
            hidden_size=hidden,
            weights=(
                *mixing,
                *(rules.weights(f, hidden, moe) if moe else dense),
                *norms(("operator_norm", "ffn_norm"), hidden),
            ),
            attention=dims.attention() if attends else None,
            ssm=None if attends else Ssm(inner_size=hidden, state_size=1, conv_kernel=kernel),
            mlp=None if moe else Mlp(ffn_hidden_size=ffn, gated=True),
            moe=moe,
            class_name=f"{prefix}DecoderLayer",
        )

    layers = dims.num_layers
    first = f.integer("num_dense_layers", default=2, low=0) if mixes else layers
    kinds = [(attends, i >= first) for i, attends in enumerate(_lfm2_attends(f, layers))]
    outline = Outline(prefix=prefix, hidden_size=hidden, vocab_size=dims.vocab_size, final=norm("embedding_norm", hidden))
    return decoder(f, outline, group(kinds, block))


def _lfm2_attends(f: Fields, num_layers: int) -> tuple[bool, ...]:
    types = f.texts("layer_types", length=num_layers)
    if types is not None:
        return tuple(kind == "full_attention" for kind in types)
    indices = f.integers("full_attn_idxs")
    return tuple(indices is None or i in indices for i in range(num_layers))


def _lfm2_width(f: Fields) -> int:
    """Two thirds of the width given, times a multiplier, rounded up to a multiple."""
    width = f.integer("block_ff_dim", "intermediate_size")
    if not f.flag("block_auto_adjust_ff_dim", default=True):
        return width
    multiple = f.integer("block_multiple_of", default=256)
    width = int(f.number("block_ffn_dim_multiplier", default=1.0, high=1000) * int(2 * width / 3))
    return max(multiple * -(-width // multiple), 1)


@family("minimax", "minimax_text_01", "minimax_m1", classes=("MiniMaxForCausalLM", "MiniMaxM1ForCausalLM"))
def minimax(f: Fields) -> Architecture:
    """MiniMax-01: lightning attention with an output gate, full attention at intervals, experts everywhere."""
    f = f.retyped("minimax")
    dims = Dims.read(f)
    hidden, size = dims.hidden_size, dims.num_heads * dims.head_dim
    rules = MoeRules(count=("num_local_experts",), width=("intermediate_size",))
    linear_attention = Attention(
        num_heads=dims.num_heads,
        num_kv_heads=dims.num_heads,
        head_dim=dims.head_dim,
        v_head_dim=dims.head_dim,
        kind="linear",
    )

    def block(full: bool) -> Block:
        moe = rules.read(f)
        lightning = (
            *norm("norm", size),
            *linear("qkv_proj", 3 * size, hidden),
            *linear("out_proj", hidden, size),
            *linear("output_gate", size, hidden),
        )
        return Block(
            hidden_size=hidden,
            weights=(
                *(grouped_attention(hidden, dims.attention()) if full else lightning),
                *rules.weights(f, hidden, moe),
                *norms(("input_layernorm", "post_attention_layernorm"), hidden),
            ),
            attention=dims.attention(f.optional("sliding_window")) if full else linear_attention,
            moe=moe,
            class_name="MiniMaxDecoderLayer",
        )

    outline = Outline(prefix="MiniMax", hidden_size=hidden, vocab_size=dims.vocab_size, final=norm("norm", hidden))
    return decoder(f, outline, group(_minimax_full(f, dims.num_layers), block))


def _minimax_full(f: Fields, num_layers: int) -> tuple[bool, ...]:
    types = f.texts("layer_types", length=num_layers)
    if types is not None:
        return tuple(kind == "full_attention" for kind in types)
    listed = f.integers("attn_type_list", length=num_layers)
    if listed is not None:
        return tuple(kind == 1 for kind in listed)
    return tuple(bool((i + 1) % 2) for i in range(num_layers))


@family("rwkv", classes=("RwkvForCausalLM",))
def rwkv(f: Fields) -> Architecture:
    """RWKV-4: time and channel mixing, one extra norm before the first block."""
    hidden = f.required("hidden_size", high=MAX_WIDTH)
    width = f.optional("attention_hidden_size", high=MAX_WIDTH) or hidden
    ffn = f.optional("intermediate_size") or 4 * hidden
    block = Block(
        hidden_size=hidden,
        weights=(
            *norms(("ln1", "ln2"), hidden, bias=True),
            Weight("time", (width,), Role.OTHER, 2),
            Weight("time_mix", (1, 1, hidden), Role.OTHER, 5),
            *(w for name in ("key", "value", "receptance") for w in linear(f"attention.{name}", width, hidden)),
            *linear("attention.output", hidden, width),
            *linear("feed_forward.key", ffn, hidden),
            *linear("feed_forward.receptance", hidden, hidden),
            *linear("feed_forward.value", hidden, ffn),
        ),
        ssm=Ssm(inner_size=width, state_size=1, conv_kernel=1),
        mlp=Mlp(ffn_hidden_size=ffn, gated=False),
        norm="layer",
        class_name="RwkvBlock",
    )
    outline = Outline(
        prefix="Rwkv",
        hidden_size=hidden,
        vocab_size=f.required("vocab_size", high=MAX_VOCAB),
        embed_name="embeddings",
        outside=norm("pre_ln", hidden, bias=True),
        final=norm("ln_out", hidden, bias=True),
        head_name="head",
        kind="ssm",
    )
    return decoder(f, outline, (Stack(block=block, count=f.required("num_hidden_layers", high=MAX_LAYERS)),))
