"""Llama 3.2 Vision: cross-attention layers between the language model's own, a tiled tower with a global part.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import conv, embedding, gated_mlp, grouped_attention, linear, norm, norms, two_layer_mlp
from app.ingest.hf_config.classic import projections
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import SECTIONS, family
from app.ingest.hf_config.vision import Tower, patches, sides
from app.ingest.hf_config.vlm import joined, text_model

SECTIONS.add("mllama_vision_model")
_SPARE_ROWS = 8  # rows of the token table beyond the vocabulary, for image tokens
_NORMS = ("input_layernorm", "post_attention_layernorm")


@family("mllama_text_model", classes=("MllamaForCausalLM",))
def mllama_text(f: Fields) -> Architecture:
    """The language model: layers listed in cross_attention_layers attend to the image instead of the text."""
    dims = Dims.read(f)
    hidden, ffn = dims.hidden_size, f.required("intermediate_size")
    crossing = f.integers("cross_attention_layers") or (3, 8, 13, 18, 23, 28, 33, 38)

    def block(crosses: bool) -> Block:
        attention = dims.attention()
        extra: tuple[Weight, ...] = ()
        if crosses:
            extra = norms(("q_norm", "k_norm"), dims.head_dim)
            extra += (Weight("cross_attn_gate", (1,), Role.OTHER, 2),)
        return Block(
            hidden_size=hidden,
            weights=(
                *grouped_attention(hidden, attention),
                *gated_mlp(hidden, ffn),
                *norms(_NORMS, hidden),
                *extra,
            ),
            attention=None if crosses else attention,
            cross_attention=replace(attention, causal=False) if crosses else None,
            mlp=Mlp(ffn_hidden_size=ffn, gated=True),
            class_name="MllamaCrossAttentionDecoderLayer" if crosses else "MllamaSelfAttentionDecoderLayer",
        )

    outline = Outline(prefix="Mllama", hidden_size=hidden, vocab_size=dims.vocab_size, final=norm("norm", hidden))
    found = decoder(f, outline, group([i in crossing for i in range(dims.num_layers)], block))
    table = embedding("embed_tokens", dims.vocab_size + _SPARE_ROWS, hidden)
    return replace(found, weights=(table, *found.weights[1:]))


def _vision_block(f: Fields, hidden: int, *, gated: bool) -> Block:
    heads = f.required("attention_heads", high=MAX_WIDTH)
    if hidden % heads and not f.missing:
        raise f.invalid("attention_heads", f"hidden_size {hidden} is not a multiple of {heads}")
    size = max(hidden // heads, 1)
    attention = Attention(num_heads=heads, num_kv_heads=heads, head_dim=size, v_head_dim=size, causal=False)
    ffn = f.required("intermediate_size")
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return Block(
        hidden_size=hidden,
        weights=(
            *projections(hidden, attention, names=names, bias=(False,) * 4),
            *two_layer_mlp(hidden, ffn, ("fc1", "fc2")),
            *norms(_NORMS, hidden, bias=True),
            *((Weight("gate", (1,), Role.OTHER, 2),) if gated else ()),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=False),
        norm="layer",
        class_name="MllamaVisionEncoderLayer",
    )


def _vision(f: Fields) -> Tower:
    hidden, tokens = f.required("hidden_size", high=MAX_WIDTH), patches(f) + 1
    tiles = f.integer("max_num_tiles", default=4, high=1000)
    ratios = f.raw("supported_aspect_ratios")
    ids = (len(ratios) if isinstance(ratios, list) and ratios else 8) + 1
    local = f.required("num_hidden_layers", high=MAX_LAYERS)
    top = f.integer("num_global_layers", default=8, low=0, high=MAX_LAYERS)
    stacks = tuple(
        Stack(block=_vision_block(f, hidden, gated=gated), count=count, part="vision", tokens=tiles * tokens)
        for gated, count in ((False, local), (True, top))
        if count
    )
    return Tower(
        stacks=stacks,
        weights=(
            Weight("class_embedding", (hidden,), Role.OTHER),
            *conv("patch_embedding", (hidden, f.integer("num_channels", default=3), *sides(f, "patch_size"))),
            Weight("gated_positional_embedding", (tokens, hidden), Role.OTHER),
            Weight("tile_embedding", (ids, tiles * tokens * hidden), Role.OTHER),
            Weight("tile_positional_embedding", (ids, tiles * hidden), Role.OTHER, 2),
            Weight("positional_gate", (1,), Role.OTHER, 3),
            *norms(("layernorm_pre", "layernorm_post"), hidden, bias=True),
        ),
        hidden_size=f.integer("vision_output_dim"),
    )


@family("mllama", classes=("MllamaForConditionalGeneration",))
def mllama(f: Fields) -> Architecture:
    """Llama 3.2 Vision."""
    section = f.needed_section("text_config").retyped("mllama_text_model")
    tower = _vision(f.needed_section("vision_config").retyped("mllama_vision_model"))
    text = text_model(f, section, tied=section.flag("tie_word_embeddings"))
    projector = linear("multi_modal_projector", text.hidden_size, tower.hidden_size, bias=True)
    return joined(f, text, tower, projector, "Mllama")
