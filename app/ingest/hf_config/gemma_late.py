"""Gemma 3n and Gemma 4 language models: inputs for each layer, shared keys and values, layers of two shapes.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Moe, Role, Weight
from app.domain.model.weights import embedding, experts, gated_mlp, grouped_attention, linear, norm, norms
from app.ingest.hf_config import windows
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import family

_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def _attention(f: Fields, hidden: int, attention: Attention, *, reuses: bool, equal: bool) -> tuple[Weight, ...]:
    """q, k, v, o with per-head norms; a layer that reuses has no k and v, one whose values equal its keys no v."""
    bias = f.flag("attention_bias")
    found = grouped_attention(hidden, attention, qkv_bias=bias, out_bias=bias)
    if reuses:
        found = tuple(w for w in found if w.name.split(".")[0] not in ("k_proj", "v_proj"))
    elif equal:
        found = tuple(w for w in found if w.name.split(".")[0] != "v_proj")
    names = ("q_norm",) if reuses else ("q_norm", "k_norm")
    return found + norms(names, attention.head_dim)


def _layer_inputs(hidden: int, width: int) -> tuple[Weight, ...]:
    """The gate and projection that feed each layer its own embedding of the token."""
    return (
        *linear("per_layer_input_gate", width, hidden),
        *linear("per_layer_projection", hidden, width),
        *norm("post_per_layer_input_norm", hidden),
    )


def _layer_tables(f: Fields, dims: Dims, width: int) -> tuple[Weight, ...]:
    rows = f.integer("vocab_size_per_layer_input", high=MAX_VOCAB)
    return (
        embedding("embed_tokens_per_layer", rows, dims.num_layers * width),
        *linear("per_layer_model_projection", dims.num_layers * width, dims.hidden_size),
        *norm("per_layer_projection_norm", width),
    )


def _reuses(f: Fields, num_layers: int) -> tuple[bool, ...]:
    shared = f.integer("num_kv_shared_layers", default=0, low=0, high=MAX_LAYERS)
    return tuple(i >= num_layers - shared for i in range(num_layers))


@family("gemma3n_text", classes=("Gemma3nForCausalLM",))
def gemma3n(f: Fields) -> Architecture:
    """Gemma 3n: several parallel streams (AltUp), a low-rank bypass (LAuReL), an embedding for each layer."""
    dims = Dims.read(f)
    hidden, streams = dims.hidden_size, f.integer("altup_num_inputs", default=4, high=1000)
    rank, width = f.integer("laurel_rank", default=64), f.integer("hidden_size_per_layer_input", default=256)

    def block(window: int | None, reuses: bool, ffn: int) -> Block:
        attention = dims.attention(window)
        return Block(
            hidden_size=hidden,
            weights=(
                *_attention(f, hidden, attention, reuses=reuses, equal=False),
                *gated_mlp(hidden, ffn),
                *norms(_NORMS, hidden),
                Weight("altup.correct_output_scale", (hidden,), Role.OTHER),
                *linear("altup.correction_coefs", streams, streams),
                *linear("altup.prediction_coefs", streams**2, streams),
                *linear("altup.modality_router", streams, hidden),
                *norm("altup.router_norm", hidden),
                *linear("laurel.linear_left", rank, hidden),
                *linear("laurel.linear_right", hidden, rank),
                *norm("laurel.post_laurel_norm", hidden),
                *_layer_inputs(hidden, width),
            ),
            attention=attention,
            mlp=Mlp(ffn_hidden_size=ffn, gated=True),
            num_norms=7,
            class_name="Gemma3nTextDecoderLayer",
        )

    layers = dims.num_layers
    listed = f.integers("intermediate_size", length=layers, low=1) if isinstance(f.raw("intermediate_size"), list) else None
    widths = listed or (f.required("intermediate_size"),) * layers
    kinds = zip(windows.every(5)(f, layers), _reuses(f, layers), widths, strict=True)
    projections = tuple(
        Weight(name, (hidden, hidden), Role.LINEAR, streams - 1)
        for name in ("altup_projections", "altup_unembed_projections")
        if streams > 1
    )
    outline = Outline(
        prefix="Gemma3n",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        outside=(*_layer_tables(f, dims, width), *projections),
        final=norm("norm", hidden),
    )
    return decoder(f, outline, group(kinds, block))


@dataclass(frozen=True, slots=True)
class _Gemma4:
    dims: Dims
    wide: Dims
    ffn: int
    width: int
    moe: Moe | None

    def mixture(self) -> tuple[Weight, ...]:
        """Experts beside the dense feed-forward, with a scaled router and three norms of their own."""
        if self.moe is None:
            return ()
        hidden = self.dims.hidden_size
        names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
        return (
            Weight("router.scale", (hidden,), Role.OTHER),
            Weight("router.per_expert_scale", (self.moe.num_experts,), Role.OTHER),
            *experts(hidden, self.moe),
            *norms(names, hidden),
        )


def _gemma4_moe(f: Fields) -> Moe | None:
    if not f.flag("enable_moe_block"):
        return None
    count = f.required("num_experts", high=MAX_WIDTH)
    return Moe(
        num_experts=count,
        experts_per_token=f.required("top_k_experts", high=count),
        expert_ffn_hidden_size=f.required("moe_intermediate_size"),
    )


@family("gemma4_text", classes=("Gemma4ForCausalLM",))
def gemma4(f: Fields) -> Architecture:
    """Gemma 4: full layers have larger heads and perhaps fewer key/value heads; the last layer is always full."""
    dims = Dims.read(f)
    hidden, ffn = dims.hidden_size, f.required("intermediate_size")
    equal = f.flag("attention_k_eq_v")
    wide = replace(dims, head_dim=f.integer("global_head_dim", default=512, high=MAX_WIDTH))
    if equal and (kv := f.optional("num_global_key_value_heads", high=MAX_WIDTH)):
        wide = replace(wide, num_kv_heads=kv)
    width = f.integer("hidden_size_per_layer_input", default=256, low=0)
    sizes = _Gemma4(dims, wide, ffn, width, _gemma4_moe(f))
    doubles = f.flag("use_double_wide_mlp")

    def block(slides: bool, reuses: bool) -> Block:
        shape = sizes.dims if slides else sizes.wide
        attention = shape.attention(f.optional("sliding_window") if slides else None)
        inner = 2 * ffn if doubles and reuses else ffn
        return Block(
            hidden_size=hidden,
            weights=(
                *_attention(f, hidden, attention, reuses=reuses, equal=equal and not slides),
                *gated_mlp(hidden, inner),
                *norms(_NORMS, hidden),
                *sizes.mixture(),
                *(_layer_inputs(hidden, width) if width else ()),
            ),
            attention=attention,
            mlp=Mlp(ffn_hidden_size=inner, gated=True),
            moe=sizes.moe,
            num_norms=len(_NORMS) + (3 if sizes.moe else 0) + (1 if width else 0),
            class_name="Gemma4TextDecoderLayer",
        )

    layers = dims.num_layers
    types = f.texts("layer_types", length=layers)
    slides = [t == "sliding_attention" for t in types] if types else [(i + 1) % 6 != 0 for i in range(layers)]
    slides[-1] = False
    outline = Outline(
        prefix="Gemma4",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        outside=_layer_tables(f, dims, width) if width else (),
        final=norm("norm", hidden),
    )
    return decoder(f, outline, group(zip(slides, _reuses(f, layers), strict=True), block))
