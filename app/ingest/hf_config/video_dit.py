"""Video and image transformers with text by cross-attention or in the sequence: Wan, CogVideoX, LTX, Mochi, PixArt.

Source: the transformer files of diffusers 0.42, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

import math

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import conv, linear, norm
from app.ingest.hf_config.dit import (
    attend,
    caption_projection,
    diffusion,
    embedder,
    feed,
    full_attention,
    once,
    qk_norms,
    width_of,
)
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.registry import family


def _table(rows: int, width: int, *, lead: bool = False) -> Weight:
    return Weight("scale_shift_table", (1, rows, width) if lead else (rows, width), Role.OTHER)


@family("WanTransformer3DModel")
def wan(f: Fields) -> Architecture:
    """Wan 2.1 and 2.2: one time projection for all blocks, text (and for image-to-video the image) by cross-attention.

    Equation: block 2·(4·(h² + h) + 2·h) + 2·h + 2·h·f + f + h + 6·h; embedders and head outside.
    """
    attention, width = full_attention(f), width_of(f)
    ffn = f.required("ffn_dim")
    patch = f.integers("patch_size", low=1) or (1, 2, 2)
    image = f.optional("image_dim", high=MAX_WIDTH)
    added = f.optional("added_kv_proj_dim", high=MAX_WIDTH)
    block = Block(
        hidden_size=width,
        weights=(
            _table(6, width, lead=True),
            *attend(width, prefix="attn1"),
            *qk_norms(width, "attn1.norm_q", "attn1.norm_k"),
            *attend(width, prefix="attn2"),
            *qk_norms(width, "attn2.norm_q", "attn2.norm_k"),
            *(_wan_image_keys(width, added) if added else ()),
            *(norm("norm2", width, bias=True) if f.flag("cross_attn_norm", default=True) else ()),
            *feed(width, ffn, prefix="ffn"),
        ),
        attention=attention,
        cross_attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=False),
        norm="layer",
        num_norms=3,
        class_name="WanTransformerBlock",
    )
    weights = (
        _table(2, width, lead=True),
        *conv("patch_embedding", (width, f.integer("in_channels", high=MAX_WIDTH), *patch), bias=True),
        *embedder("time_embedder", width, f.integer("freq_dim", default=256, high=MAX_WIDTH)),
        *once("time_proj", 6 * width, width),
        *linear("text_embedder.linear_1", width, f.integer("text_dim", default=4096, high=MAX_WIDTH), bias=True),
        *linear("text_embedder.linear_2", width, width, bias=True),
        *(_wan_image(f, width, image) if image else ()),
        *linear("proj_out", math.prod(patch) * f.integer("out_channels", high=MAX_WIDTH), width, bias=True),
    )
    stack = Stack(block=block, count=f.required("num_layers", high=MAX_LAYERS))
    return diffusion(f, f.model_type, (stack,), weights)


def _wan_image_keys(width: int, added: int) -> tuple[Weight, ...]:
    return (
        *linear("attn2.add_k_proj", width, added, bias=True),
        *linear("attn2.add_v_proj", width, added, bias=True),
        *norm("attn2.norm_added_k", width),
    )


def _wan_image(f: Fields, width: int, image: int) -> tuple[Weight, ...]:
    rows = f.optional("pos_embed_seq_len")
    return (
        *((Weight("image_embedder.pos_embed", (1, rows, image), Role.OTHER),) if rows else ()),
        *norm("image_embedder.norm1", image, bias=True),
        *linear("image_embedder.ff.net.0.proj", image, image, bias=True),
        *linear("image_embedder.ff.net.2", width, image, bias=True),
        *norm("image_embedder.norm2", width, bias=True),
    )


@family("CogVideoXTransformer3DModel")
def cogvideox(f: Fields) -> Architecture:
    """CogVideoX: text and video in one sequence with shared weights, modulated from a narrow time embedding.

    Equation: block 2·(6·e·h + 6·h + 2·h) + 4·d + 4·(h² + h) + 8·h² + 5·h with time width e.
    """
    attention, width = full_attention(f), width_of(f)
    time = f.integer("time_embed_dim", high=MAX_WIDTH)
    bias = f.flag("attention_bias", default=True)
    block = Block(
        hidden_size=width,
        weights=(
            *once("norm1.linear", 6 * width, time),
            *norm("norm1.norm", width, bias=True),
            *qk_norms(attention.head_dim, "attn1.norm_q", "attn1.norm_k", bias=True),
            *attend(width, prefix="attn1", bias=bias),
            *once("norm2.linear", 6 * width, time),
            *norm("norm2.norm", width, bias=True),
            *feed(width, 4 * width),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=4 * width, gated=False),
        norm="layer",
        dropout=f.number("dropout") > 0,
        class_name="CogVideoXBlock",
    )
    space, frames = f.integer("patch_size", default=2, high=1000), f.optional("patch_size_t", high=1000)
    volume, channels = space**2 * (frames or 1), f.integer("in_channels", high=MAX_WIDTH)
    patch = (
        linear("patch_embed.proj", width, channels * volume, bias=True)
        if frames
        else conv("patch_embed.proj", (width, channels, space, space), bias=f.flag("patch_bias", default=True))
    )
    ofs = f.optional("ofs_embed_dim", high=MAX_WIDTH)
    weights = (
        *patch,
        *linear("patch_embed.text_proj", width, f.integer("text_embed_dim", high=MAX_WIDTH), bias=True),
        *once("time_embedding.linear_1", time, width),
        *once("time_embedding.linear_2", time, time),
        *(embedder("ofs_embedding", ofs, ofs) if ofs else ()),
        *norm("norm_final", width, bias=True),
        *once("norm_out.linear", 2 * width, time),
        *norm("norm_out.norm", width, bias=True),
        *linear("proj_out", volume * (f.optional("out_channels", high=MAX_WIDTH) or channels), width, bias=True),
    )
    stack = Stack(block=block, count=f.required("num_layers", high=MAX_LAYERS))
    return diffusion(f, f.model_type, (stack,), weights)


def _cross_block(f: Fields, class_name: str, *, cross: int, qk: bool, bias: bool) -> Block:
    """Self-attention, cross-attention to text, feed-forward, six rows of scale and shift."""
    attention, width = full_attention(f), width_of(f)
    names = ("attn1.norm_q", "attn1.norm_k", "attn2.norm_q", "attn2.norm_k") if qk else ()
    return Block(
        hidden_size=width,
        weights=(
            _table(6, width),
            *attend(width, prefix="attn1", bias=bias),
            *attend(width, cross, prefix="attn2", bias=bias),
            *qk_norms(width, *names),
            *feed(width, 4 * width),
        ),
        attention=attention,
        cross_attention=attention,
        mlp=Mlp(ffn_hidden_size=4 * width, gated=False),
        norm="layer",
        class_name=class_name,
    )


@family("PixArtTransformer2DModel")
def pixart(f: Fields) -> Architecture:
    """PixArt-α and Σ: one modulation for all blocks; the 1024-pixel α also embeds resolution and aspect ratio."""
    width, patch = width_of(f), f.integer("patch_size", default=2, high=1000)
    channels = f.integer("in_channels", high=MAX_WIDTH)
    cross = f.integer("cross_attention_dim", high=MAX_WIDTH)
    caption = f.optional("caption_channels", high=MAX_WIDTH)
    extra: tuple[Weight, ...] = ()
    extended = f.raw("use_additional_conditions")
    if extended is True or (extended is None and f.optional("sample_size") == 128):
        for name in ("resolution_embedder", "aspect_ratio_embedder"):
            extra += embedder(name, width // 3, 256)
    weights = (
        _table(2, width),
        *conv("pos_embed.proj", (width, channels, patch, patch), bias=True),
        *embedder("adaln_single.timestep_embedder", width, 256),
        *extra,
        *once("adaln_single.linear", 6 * width, width),
        *(caption_projection(width, caption) if caption else ()),
        *linear("proj_out", patch**2 * (f.optional("out_channels", high=MAX_WIDTH) or channels), width, bias=True),
    )
    block = _cross_block(f, "BasicTransformerBlock", cross=cross, qk=False, bias=f.flag("attention_bias", default=True))
    stack = Stack(block=block, count=f.required("num_layers", high=MAX_LAYERS))
    return diffusion(f, f.model_type, (stack,), weights)


@family("LTXVideoTransformer3DModel")
def ltx(f: Fields) -> Architecture:
    """LTX-Video: patches of one latent, full-width query/key norms."""
    width = width_of(f)
    channels = f.integer("in_channels", high=MAX_WIDTH)
    weights = (
        _table(2, width),
        *linear("proj_in", width, channels, bias=True),
        *embedder("time_embed.timestep_embedder", width, 256),
        *once("time_embed.linear", 6 * width, width),
        *caption_projection(width, f.integer("caption_channels", high=MAX_WIDTH)),
        *linear("proj_out", f.optional("out_channels", high=MAX_WIDTH) or channels, width, bias=True),
    )
    cross = f.integer("cross_attention_dim", high=MAX_WIDTH)
    bias = f.flag("attention_bias", default=True)
    block = _cross_block(f, "LTXVideoTransformerBlock", cross=cross, qk=True, bias=bias)
    stack = Stack(block=block, count=f.required("num_layers", high=MAX_LAYERS))
    return diffusion(f, f.model_type, (stack,), weights)


@family("MochiTransformer3DModel")
def mochi(f: Fields) -> Architecture:
    """Mochi 1: a narrow text stream beside the video, SwiGLU in both, the last block without text output."""
    attention, width = full_attention(f), width_of(f)
    text, time = f.integer("pooled_projection_dim", high=MAX_WIDTH), f.integer("time_embed_dim", high=MAX_WIDTH)
    caption = f.integer("text_embed_dim", high=MAX_WIDTH)
    patch, channels = f.integer("patch_size", default=2, high=1000), f.integer("in_channels", high=MAX_WIDTH)
    layers = f.required("num_layers", high=MAX_LAYERS)
    stacks = tuple(
        Stack(block=_mochi_block(attention, width, text, last=last), count=count)
        for last, count in ((False, layers - 1), (True, 1))
        if count
    )
    weights = (
        Weight("pos_frequencies", (3, attention.num_heads, attention.head_dim // 2), Role.OTHER),
        *conv("patch_embed.proj", (width, channels, patch, patch), bias=True),
        *once("timestep_embedder.linear_1", width, time),
        *once("timestep_embedder.linear_2", width, width),
        *once("pooler.to_kv", 2 * caption, caption),
        *once("pooler.to_q", caption, caption),
        *once("pooler.to_out", width, caption),
        *linear("caption_proj", text, caption, bias=True),
        *once("norm_out.linear", 2 * width, width),
        *linear("proj_out", patch**2 * (f.optional("out_channels", high=MAX_WIDTH) or channels), width, bias=True),
    )
    return diffusion(f, f.model_type, stacks, weights)


def _mochi_block(attention: Attention, width: int, text: int, *, last: bool) -> Block:
    inner, inner_text = 4 * width * 2 // 3, 4 * text * 2 // 3
    added = tuple(w for n in ("add_q_proj", "add_k_proj", "add_v_proj") for w in linear(f"attn1.{n}", width, text))
    if last:
        context = once("norm1_context.linear_1", text, width)
    else:
        context = (
            *once("norm1_context.linear", 4 * text, width),
            *linear("attn1.to_add_out", text, width, bias=True),
            *linear("ff_context.net.0.proj", 2 * inner_text, text),
            *linear("ff_context.net.2", text, inner_text),
        )
    return Block(
        hidden_size=width,
        weights=(
            *once("norm1.linear", 4 * width, width),
            *attend(width, prefix="attn1", bias=False),
            *qk_norms(attention.head_dim, "norm_q", "norm_k", "norm_added_q", "norm_added_k"),
            *added,
            *context,
            *linear("ff.net.0.proj", 2 * inner, width),
            *linear("ff.net.2", width, inner),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=inner, gated=True),
        norm="rms",
        class_name="MochiTransformerBlock",
    )
