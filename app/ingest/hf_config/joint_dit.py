"""Image and video transformers whose text and image tokens attend jointly: FLUX, SD3, HunyuanVideo, Qwen-Image.

Source: the transformer files of diffusers 0.42, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Block, Mlp, Stack, Weight
from app.domain.model.weights import conv, linear, norm
from app.ingest.hf_config.dit import (
    attend,
    diffusion,
    embedder,
    feed,
    full_attention,
    once,
    qk_norms,
    time_text_embed,
    width_of,
)
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.registry import family

_ADDED = ("add_q_proj", "add_k_proj", "add_v_proj")
_REFINED_TOKENS = 256  # text tokens HunyuanVideo's pipeline pads to


def _text_branch(width: int, inner: int, names: tuple[str, str] = ("to_add_out", "ff_context")) -> tuple[Weight, ...]:
    return (
        *(weight for name in _ADDED for weight in linear(f"attn.{name}", width, width, bias=True)),
        *linear(f"attn.{names[0]}", width, width, bias=True),
        *feed(width, inner, prefix=names[1]),
    )


def double_block(
    f: Fields, class_name: str, *, ratio: int = 4, mods: tuple[str, str] = ("norm1.linear", "norm1_context.linear"),
    feeds: tuple[str, str] = ("ff", "ff_context"),
) -> Block:  # fmt: skip
    """A block with separate weights for text and image, one attention over both.

    Equation: 2·(6·h² + 6·h) modulation + 8·(h² + h) attention + 2·(2·r·h² + (r + 1)·h) feed-forward + 4·d.
    """
    attention, width = full_attention(f), width_of(f)
    return Block(
        hidden_size=width,
        weights=(
            *(weight for name in mods for weight in once(name, 6 * width, width)),
            *attend(width),
            *qk_norms(attention.head_dim, "norm_q", "norm_k", "norm_added_q", "norm_added_k"),
            *feed(width, ratio * width, prefix=feeds[0]),
            *_text_branch(width, ratio * width, ("to_add_out", feeds[1])),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ratio * width, gated=False),
        norm="layer",
        num_norms=2,
        class_name=class_name,
    )


def single_block(f: Fields, class_name: str, *, ratio: int = 4) -> Block:
    """A block over text and image together, attention and feed-forward in parallel, one output matrix.

    Equation: 3·(h² + h) modulation + 3·(h² + h) q, k, v + r·h² + r·h in + (1 + r)·h² + h out + 2·d.
    """
    attention, width = full_attention(f), width_of(f)
    return Block(
        hidden_size=width,
        weights=(
            *once("norm.linear", 3 * width, width),
            *(weight for name in ("to_q", "to_k", "to_v") for weight in linear(f"attn.{name}", width, width, bias=True)),
            *qk_norms(attention.head_dim, "norm_q", "norm_k"),
            *linear("proj_mlp", ratio * width, width, bias=True),
            *linear("proj_out", width, (1 + ratio) * width, bias=True),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ratio * width, gated=False),
        norm="layer",
        num_norms=1,
        parallel_residual=True,
        class_name=class_name,
    )


def _stacks(*pairs: tuple[Block, int]) -> tuple[Stack, ...]:
    return tuple(Stack(block=block, count=count) for block, count in pairs if count)


def _out(width: int, features: int) -> tuple[Weight, ...]:
    return once("norm_out.linear", 2 * width, width) + linear("proj_out", features, width, bias=True)


@family("FluxTransformer2DModel")
def flux(f: Fields) -> Architecture:
    """FLUX.1: 19 double and 38 single blocks on packed latents; dev is distilled and embeds guidance."""
    width = width_of(f)
    channels = f.integer("in_channels", high=MAX_WIDTH)
    out = (f.optional("out_channels", high=MAX_WIDTH) or channels) * f.integer("patch_size", default=1, high=1000) ** 2
    weights = (
        *time_text_embed(f, width, guidance=f.flag("guidance_embeds")),
        *linear("context_embedder", width, f.integer("joint_attention_dim", high=MAX_WIDTH), bias=True),
        *linear("x_embedder", width, channels, bias=True),
        *_out(width, out),
    )
    stacks = _stacks(
        (double_block(f, "FluxTransformerBlock"), f.required("num_layers", high=MAX_LAYERS)),
        (single_block(f, "FluxSingleTransformerBlock"), f.integer("num_single_layers", low=0, high=MAX_LAYERS)),
    )
    return diffusion(f, f.model_type, stacks, weights)


@family("HunyuanVideoTransformer3DModel")
def hunyuan_video(f: Fields) -> Architecture:
    """HunyuanVideo: FLUX's blocks on 3-D patches, with two blocks that refine the text first."""
    width, ratio = width_of(f), _ratio(f)
    space, frames = f.integer("patch_size", default=2, high=1000), f.integer("patch_size_t", default=1, high=1000)
    text = f.integer("text_embed_dim", high=MAX_WIDTH)
    patch = space**2 * frames
    weights = (
        *conv("x_embedder.proj", (width, f.integer("in_channels", high=MAX_WIDTH), frames, space, space), bias=True),
        *embedder("context_embedder.timestep_embedder", width, 256),
        *embedder("context_embedder.text_embedder", width, text),
        *linear("context_embedder.proj_in", width, text, bias=True),
        *time_text_embed(f, width, guidance=f.flag("guidance_embeds", default=True)),
        *_out(width, patch * f.integer("out_channels", high=MAX_WIDTH)),
    )
    refiner = Stack(
        block=_refiner(f, ratio),
        count=f.integer("num_refiner_layers", default=2, high=MAX_LAYERS),
        part="encoder",
        tokens=_REFINED_TOKENS,
    )
    replaces = "TokenReplace" if f.text("image_condition_type") == "token_replace" else ""
    doubles = double_block(f, f"HunyuanVideo{replaces}TransformerBlock", ratio=ratio)
    singles = single_block(f, f"HunyuanVideo{replaces}SingleTransformerBlock", ratio=ratio)
    stacks = _stacks(
        (doubles, f.required("num_layers", high=MAX_LAYERS)),
        (singles, f.integer("num_single_layers", low=0, high=MAX_LAYERS)),
    )
    return diffusion(f, f.model_type, (*stacks, refiner), weights)


def _ratio(f: Fields) -> int:
    ratio = f.number("mlp_ratio", default=4.0, high=1000)
    if not ratio.is_integer() or ratio < 1:
        raise f.unsupported("mlp_ratio", f"{ratio} is not a whole number")
    return int(ratio)


def _refiner(f: Fields, ratio: int) -> Block:
    width = width_of(f)
    return Block(
        hidden_size=width,
        weights=(
            *norm("norm1", width, bias=True),
            *attend(width),
            *norm("norm2", width, bias=True),
            *feed(width, ratio * width),
            *once("norm_out.linear", 2 * width, width),
        ),
        attention=full_attention(f),
        mlp=Mlp(ffn_hidden_size=ratio * width, gated=False),
        norm="layer",
        class_name="HunyuanVideoIndividualTokenRefinerBlock",
    )


@family("QwenImageTransformer2DModel")
def qwen_image(f: Fields) -> Architecture:
    """Qwen-Image: 60 double blocks, no single ones."""
    width = width_of(f)
    text = f.integer("joint_attention_dim", high=MAX_WIDTH)
    patch = f.integer("patch_size", default=2, high=1000)
    channels = f.integer("in_channels", high=MAX_WIDTH)
    weights = (
        *embedder("timestep_embedder", width, 256),
        *norm("txt_norm", text),
        *linear("img_in", width, channels, bias=True),
        *linear("txt_in", width, text, bias=True),
        *_out(width, patch**2 * (f.optional("out_channels", high=MAX_WIDTH) or channels)),
    )
    block = double_block(f, "QwenImageTransformerBlock", mods=("img_mod.1", "txt_mod.1"), feeds=("img_mlp", "txt_mlp"))
    return diffusion(f, f.model_type, _stacks((block, f.required("num_layers", high=MAX_LAYERS))), weights)


@family("SD3Transformer2DModel")
def sd3(f: Fields) -> Architecture:
    """Stable Diffusion 3 and 3.5: joint blocks, some with a second attention over the image, the last without text."""
    width, layers = width_of(f), f.required("num_layers", high=MAX_LAYERS)
    dual = set(f.integers("dual_attention_layers") or ())
    normed = bool(f.text("qk_norm"))
    patch = f.integer("patch_size", default=2, high=1000)
    channels = f.integer("in_channels", high=MAX_WIDTH)
    caption = f.integer("caption_projection_dim", high=MAX_WIDTH)
    weights = (
        *conv("pos_embed.proj", (width, channels, patch, patch), bias=True),
        *time_text_embed(f, width, guidance=False),
        *linear("context_embedder", caption, f.integer("joint_attention_dim", high=MAX_WIDTH), bias=True),
        *_out(width, patch**2 * (f.optional("out_channels", high=MAX_WIDTH) or channels)),
    )
    kinds = [(i in dual, i == layers - 1) for i in range(layers)]
    stacks = _stacks(*((_sd3_block(f, dual=k[0], last=k[1], normed=normed), kinds.count(k)) for k in dict.fromkeys(kinds)))
    return diffusion(f, f.model_type, stacks, weights)


def _sd3_block(f: Fields, *, dual: bool, last: bool, normed: bool) -> Block:
    attention, width = full_attention(f), width_of(f)
    size = attention.head_dim
    text: tuple[Weight, ...] = tuple(weight for name in _ADDED for weight in linear(f"attn.{name}", width, width, bias=True))
    if not last:
        text += linear("attn.to_add_out", width, width, bias=True) + feed(width, 4 * width, prefix="ff_context")
    second = attend(width, prefix="attn2") + (qk_norms(size, "attn2.norm_q", "attn2.norm_k") if normed else ())
    return Block(
        hidden_size=width,
        weights=(
            *once("norm1.linear", (9 if dual else 6) * width, width),
            *once("norm1_context.linear", (2 if last else 6) * width, width),
            *attend(width),
            *(qk_norms(size, "norm_q", "norm_k", "norm_added_q", "norm_added_k") if normed else ()),
            *text,
            *(second if dual else ()),
            *feed(width, 4 * width),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=4 * width, gated=False),
        norm="layer",
        num_norms=2,
        class_name="JointTransformerBlock",
    )
