"""BLIP-2 and InstructBLIP: a ViT tower, a Q-Former that queries it, and a language model.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import embedding, fused_attention, linear, norm, norms, two_layer_mlp
from app.ingest.hf_config.classic import dropping, projections
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import class_name_of, no_such_head
from app.ingest.hf_config.registry import SECTIONS, family
from app.ingest.hf_config.vision import Tower, VitSizes, patch_conv, patches
from app.ingest.hf_config.vlm import joined, text_model

_PARTS = {
    "blip-2": ("Blip2", "blip_2_vision_model", "blip_2_qformer"),
    "instructblip": ("InstructBlip", "instructblip_vision_model", "instructblip_qformer"),
}
SECTIONS.update(name for parts in _PARTS.values() for name in parts[1:])


def _tower(f: Fields, prefix: str) -> Tower:
    """The EVA ViT: one q/k/v matrix whose bias has no key part of its own in the checkpoint but is one vector here."""
    sizes = VitSizes.read(f)
    hidden, tokens = sizes.hidden_size, patches(f) + 1
    bias = f.flag("qkv_bias", default=True)
    attention = fused_attention(hidden, sizes.attention, name="qkv", out_name="projection", qkv_bias=bias, out_bias=True)
    names = ("layer_norm1", "layer_norm2")
    block = sizes.block(f"{prefix}EncoderLayer", attention, names, dropout=dropping(f, "attention_dropout"))
    return Tower(
        stacks=(Stack(block=block, count=sizes.num_layers, part="vision", tokens=tokens),),
        weights=(
            Weight("class_embedding", (1, 1, hidden), Role.OTHER),
            Weight("position_embedding", (1, tokens, hidden), Role.OTHER),
            *patch_conv(f, "patch_embedding", hidden, bias=True),
            *norm("post_layernorm", hidden, bias=True),
        ),
        hidden_size=hidden,
    )


def _qformer(f: Fields, prefix: str, queries: int) -> Tower:
    """A BERT over learned queries; every n-th layer also attends to the image."""
    sizes = VitSizes.read(f)
    hidden = sizes.hidden_size
    image = f.required("encoder_hidden_size", high=MAX_WIDTH)
    step = f.integer("cross_attention_frequency", default=2)
    reads_text = prefix == "InstructBlip"

    def block(*, crosses: bool) -> Block:
        names = ("attention.output.LayerNorm", *(("crossattention.output.LayerNorm",) if crosses else ()))
        twins = ("output_query.LayerNorm", *(("output.LayerNorm",) if reads_text else ()))
        feeds = two_layer_mlp(hidden, sizes.ffn, ("intermediate_query.dense", "output_query.dense"))
        if reads_text:
            feeds += two_layer_mlp(hidden, sizes.ffn, ("intermediate.dense", "output.dense"))
        return Block(
            hidden_size=hidden,
            weights=(
                *projections(hidden, sizes.attention, names=("query", "key", "value", "dense"), bias=(True,) * 4),
                *(_cross(hidden, image) if crosses else ()),
                *feeds,
                *norms((*names, *twins), hidden, bias=True),
            ),
            attention=sizes.attention,
            cross_attention=sizes.attention if crosses else None,
            mlp=Mlp(ffn_hidden_size=sizes.ffn, gated=False),
            norm="layer",
            num_norms=len(names) + 1,
            dropout=dropping(f, "hidden_dropout_prob", "attention_probs_dropout_prob"),
            class_name=f"{prefix}QFormerLayer",
        )

    crossing = len(range(0, sizes.num_layers, step))
    counts = ((True, crossing), (False, sizes.num_layers - crossing))
    stacks = tuple(Stack(block=block(crosses=crosses), count=count, part="vision", tokens=queries) for crosses, count in counts if count)
    return Tower(stacks=stacks, weights=_qformer_outside(f, hidden, reads_text=reads_text), hidden_size=hidden)


def _qformer_outside(f: Fields, hidden: int, *, reads_text: bool) -> tuple[Weight, ...]:
    if not reads_text and not f.flag("use_qformer_text_input"):
        return norm("qformer.layernorm", hidden, bias=True)
    return (
        embedding("qformer.word_embeddings", f.required("vocab_size"), hidden),
        embedding("qformer.position_embeddings", f.required("max_position_embeddings"), hidden),
        *norm("qformer.layernorm", hidden, bias=True),
    )


def _cross(hidden: int, image: int) -> tuple[Weight, ...]:
    return (
        *linear("crossattention.query", hidden, hidden, bias=True),
        *linear("crossattention.key", hidden, image, bias=True),
        *linear("crossattention.value", hidden, image, bias=True),
        *linear("crossattention.dense", hidden, hidden, bias=True),
    )


@family(*_PARTS, classes=("Blip2ForConditionalGeneration",))
def blip2(f: Fields) -> Architecture:
    """BLIP-2 with OPT or T5 below, InstructBLIP with Vicuna: every size of the tower may be a class default."""
    prefix, vision_type, qformer_type = _PARTS[f.model_type]
    name = class_name_of(f)
    if name and not name.endswith("ForConditionalGeneration"):
        raise no_such_head(f)
    section = f.needed_section("text_config", model_type="opt")
    tower = _tower(f.needed_section("vision_config").retyped(vision_type), prefix)
    queries = f.integer("num_query_tokens", default=32, high=MAX_LAYERS)
    former = _qformer(f.needed_section("qformer_config").retyped(qformer_type), prefix, queries)
    text = text_model(f, section, tied=section.flag("tie_word_embeddings", default=section.model_type == "t5"))
    projector = (
        Weight("query_tokens", (1, queries, former.hidden_size), Role.OTHER),
        *linear("language_projection", text.hidden_size, former.hidden_size, bias=True),
    )
    both = Tower(
        stacks=tower.stacks + former.stacks,
        weights=tower.weights + former.weights,
        hidden_size=former.hidden_size,
    )
    return joined(f, text, both, projector, prefix)
