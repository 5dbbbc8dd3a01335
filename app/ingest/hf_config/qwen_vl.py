"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: a tower on video patches, a merger, and the text model.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import conv, fused_attention, gated_mlp, linear, norm, norms, two_layer_mlp
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.registry import SECTIONS, family, read
from app.ingest.hf_config.vision import Tower, sides
from app.ingest.hf_config.vlm import either_tied, joined, text_model

_TEXT = {
    "qwen2_vl_text": ("qwen2", "Qwen2VL"),
    "qwen2_5_vl_text": ("qwen2", "Qwen2_5_VL"),
    "qwen3_vl_text": ("qwen3", "Qwen3VLText"),
    "qwen3_vl_moe_text": ("qwen3_moe", "Qwen3VLMoeText"),
}
SECTIONS.update(
    {"qwen2_vl_vision", "qwen2_5_vl_vision", "qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_5_vision"} | {"qwen3_5_moe_vision"}
)


@family(*_TEXT)
def vl_text(f: Fields) -> Architecture:
    """The text half: the plain family's tensors under the VL class names."""
    base, prefix = _TEXT[f.model_type]
    found = read(f.as_family(base))
    stacks = tuple(replace(s, block=replace(s.block, class_name=f"{prefix}DecoderLayer")) for s in found.stacks)
    return replace(found, stacks=stacks)


def _attention(f: Fields, hidden: int) -> Attention:
    heads = f.required("num_heads", high=MAX_WIDTH)
    if hidden % heads and not f.missing:
        raise f.invalid("num_heads", f"width {hidden} is not a multiple of {heads}")
    size = max(hidden // heads, 1)
    return Attention(num_heads=heads, num_kv_heads=heads, head_dim=size, v_head_dim=size, causal=False)


def _patch_conv(f: Fields, hidden: int, *, bias: bool) -> tuple[Weight, ...]:
    patch, frames = sides(f, "patch_size", 14), f.integer("temporal_patch_size", default=2, high=1000)
    channels = f.integer("in_channels", "in_chans", default=3, high=MAX_WIDTH)
    return conv("patch_embed.proj", (hidden, channels, frames, *patch), bias=bias)


def _merger(width: int, merged: int, out: int, *, shift: bool) -> tuple[Weight, ...]:
    return (
        *norm("merger.ln_q", width, bias=shift),
        *linear("merger.0", merged, merged, bias=True),
        *linear("merger.2", out, merged, bias=True),
    )


def _qwen2_tower(f: Fields) -> Tower:
    """Qwen2-VL: hidden_size is the projector's output, embed_dim the width."""
    width, out = f.required("embed_dim", high=MAX_WIDTH), f.required("hidden_size", high=MAX_WIDTH)
    attention, ffn = _attention(f, width), int(width * f.number("mlp_ratio", default=4, high=1000))
    block = Block(
        hidden_size=width,
        weights=(
            *norms(("norm1", "norm2"), width, bias=True),
            *fused_attention(width, attention, name="qkv", out_name="proj", qkv_bias=True, out_bias=True),
            *two_layer_mlp(width, max(ffn, 1), ("fc1", "fc2")),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=max(ffn, 1), gated=False),
        norm="layer",
        class_name="Qwen2VLVisionBlock",
    )
    merged = width * f.integer("spatial_merge_size", default=2, high=1000) ** 2
    weights = _patch_conv(f, width, bias=False) + _merger(width, merged, out, shift=True)
    return _tower(f, block, weights)


def _qwen25_tower(f: Fields) -> Tower:
    """Qwen2.5-VL: hidden_size is the width, out_hidden_size the projector's output; gated layers, windows."""
    width, out = f.required("hidden_size", high=MAX_WIDTH), f.required("out_hidden_size", high=MAX_WIDTH)
    attention, ffn = _attention(f, width), f.required("intermediate_size")
    block = Block(
        hidden_size=width,
        weights=(
            *norms(("norm1", "norm2"), width),
            *fused_attention(width, attention, name="qkv", out_name="proj", qkv_bias=True, out_bias=True),
            *gated_mlp(width, ffn, bias=True),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=True),
        class_name="Qwen2_5_VLVisionBlock",
    )
    merged = width * f.integer("spatial_merge_size", default=2, high=1000) ** 2
    weights = _patch_conv(f, width, bias=False) + _merger(width, merged, out, shift=False)
    side = f.integer("window_size", default=112) // sides(f, "patch_size", 14)[0]
    full = len([i for i in f.integers("fullatt_block_indexes") or () if i < f.required("depth", high=MAX_LAYERS)])
    near = replace(block, attention=replace(attention, window=max(side**2, 1)))
    depth = f.required("depth", high=MAX_LAYERS)
    stacks = tuple(Stack(block=b, count=n, part="vision") for b, n in ((near, depth - full), (block, full)) if n > 0)
    return Tower(stacks=stacks, weights=weights, hidden_size=width)


def _qwen3_tower(f: Fields, layer_class: str) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions, mergers after some layers too (deepstack)."""
    width, out = f.required("hidden_size", high=MAX_WIDTH), f.required("out_hidden_size", high=MAX_WIDTH)
    attention, ffn = _attention(f, width), f.required("intermediate_size")
    block = Block(
        hidden_size=width,
        weights=(
            *norms(("norm1", "norm2"), width, bias=True),
            *fused_attention(width, attention, name="qkv", out_name="proj", qkv_bias=True, out_bias=True),
            *two_layer_mlp(width, ffn, ("linear_fc1", "linear_fc2")),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=False),
        norm="layer",
        class_name=layer_class,
    )
    merged = width * f.integer("spatial_merge_size", default=2, high=1000) ** 2
    weights = _patch_conv(f, width, bias=True) + _merger(width, merged, out, shift=True)
    weights += (Weight("pos_embed", (f.integer("num_position_embeddings", default=2304), width), Role.OTHER),)
    for _ in f.integers("deepstack_visual_indexes") or ():
        weights += _merger(merged, merged, out, shift=True)
    return _tower(f, block, weights)


def _tower(f: Fields, block: Block, weights: tuple[Weight, ...]) -> Tower:
    stack = Stack(block=block, count=f.required("depth", high=MAX_LAYERS), part="vision")
    return Tower(stacks=(stack,), weights=weights, hidden_size=block.hidden_size)


def _text_section(f: Fields, model_type: str) -> Fields:
    """text_config, or the flat fields of the configs that were saved before it existed."""
    return f.section("text_config", model_type=model_type) or f.retyped(model_type)


@family("qwen2_vl", classes=("Qwen2VLForConditionalGeneration",))
def qwen2_vl(f: Fields) -> Architecture:
    """Qwen2-VL."""
    section = _text_section(f, "qwen2_vl_text").retyped("qwen2_vl_text")
    tower = _qwen2_tower(f.needed_section("vision_config").retyped("qwen2_vl_vision"))
    return joined(f, text_model(f, section, tied=either_tied(f, section)), tower, (), "Qwen2VL")


@family("qwen2_5_vl", classes=("Qwen2_5_VLForConditionalGeneration",))
def qwen2_5_vl(f: Fields) -> Architecture:
    """Qwen2.5-VL."""
    section = _text_section(f, "qwen2_5_vl_text").retyped("qwen2_5_vl_text")
    tower = _qwen25_tower(f.needed_section("vision_config").retyped("qwen2_5_vl_vision"))
    return joined(f, text_model(f, section, tied=either_tied(f, section)), tower, (), "Qwen2_5_VL")


_QWEN3 = {
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
}


@family(*_QWEN3, classes=("Qwen3VLForConditionalGeneration",))
def qwen3_vl(f: Fields) -> Architecture:
    """Qwen3-VL, its mixture, and Qwen3.5 with its hybrid text model."""
    prefix = _QWEN3[f.model_type]
    section = f.needed_section("text_config").retyped(f"{f.model_type}_text")
    vision = f.needed_section("vision_config").retyped(f"{f.model_type}_vision")
    tower = _qwen3_tower(vision, f"{prefix}VisionBlock")
    return joined(f, text_model(f, section, tied=f.flag("tie_word_embeddings")), tower, (), prefix)
