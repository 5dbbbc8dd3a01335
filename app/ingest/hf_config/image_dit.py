"""Image transformers with one modulation for all blocks: FLUX.2, Sana, the class-conditional DiT.

Source: the transformer files of diffusers 0.42, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

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


def _plain(name: str, out_features: int, in_features: int) -> tuple[Weight, ...]:
    """A matrix without bias that runs once a sample."""
    return (Weight(name, (out_features, in_features), Role.OTHER),)


def _flux2_double(attention: Attention, width: int, mlp: Mlp) -> Block:
    inner = mlp.ffn_hidden_size
    image, text = ("to_q", "to_k", "to_v", "to_out.0"), ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    return Block(
        hidden_size=width,
        weights=(
            *(w for name in (*image, *text) for w in linear(f"attn.{name}", width, width)),
            *qk_norms(attention.head_dim, "norm_q", "norm_k", "norm_added_q", "norm_added_k"),
            *(w for name in ("ff", "ff_context") for w in linear(f"{name}.linear_in", 2 * inner, width)),
            *(w for name in ("ff", "ff_context") for w in linear(f"{name}.linear_out", width, inner)),
        ),
        attention=attention,
        mlp=mlp,
        norm="layer",
        class_name="Flux2TransformerBlock",
    )


def _flux2_single(attention: Attention, width: int, mlp: Mlp) -> Block:
    inner = mlp.ffn_hidden_size
    return Block(
        hidden_size=width,
        weights=(
            *linear("attn.to_qkv_mlp_proj", 3 * width + 2 * inner, width),
            *qk_norms(attention.head_dim, "norm_q", "norm_k"),
            *linear("attn.to_out", width, width + inner),
        ),
        attention=attention,
        mlp=mlp,
        norm="layer",
        num_norms=1,
        parallel_residual=True,
        class_name="Flux2SingleTransformerBlock",
    )


@family("Flux2Transformer2DModel")
def flux2(f: Fields) -> Architecture:
    """FLUX.2: no biases, gated feed-forwards, modulations shared by all blocks of a kind."""
    attention, width = full_attention(f), width_of(f)
    mlp = Mlp(ffn_hidden_size=max(int(width * f.number("mlp_ratio", default=3.0, high=1000)), 1), gated=True)
    channels = f.integer("in_channels", high=MAX_WIDTH)
    time = f.integer("timestep_guidance_channels", default=256, high=MAX_WIDTH)
    guided = f.flag("guidance_embeds", default=True)
    embeds = ("timestep_embedder", "guidance_embedder") if guided else ("timestep_embedder",)
    patch = f.integer("patch_size", default=1, high=1000) ** 2
    weights = (
        *(w for n in embeds for w in _plain(f"{n}.linear_1", width, time) + _plain(f"{n}.linear_2", width, width)),
        *_plain("double_stream_modulation_img", 6 * width, width),
        *_plain("double_stream_modulation_txt", 6 * width, width),
        *_plain("single_stream_modulation", 3 * width, width),
        *linear("x_embedder", width, channels),
        *linear("context_embedder", width, f.integer("joint_attention_dim", high=MAX_WIDTH)),
        *_plain("norm_out.linear", 2 * width, width),
        *linear("proj_out", patch * (f.optional("out_channels", high=MAX_WIDTH) or channels), width),
    )
    counts = (
        (_flux2_double(attention, width, mlp), f.required("num_layers", high=MAX_LAYERS)),
        (_flux2_single(attention, width, mlp), f.integer("num_single_layers", low=0, high=MAX_LAYERS)),
    )
    return diffusion(f, f.model_type, tuple(Stack(block=block, count=count) for block, count in counts if count), weights)


@family("SanaTransformer2DModel")
def sana(f: Fields) -> Architecture:
    """Sana: linear attention over the image, cross-attention to text, a convolutional gated feed-forward."""
    whole, width = full_attention(f), width_of(f)
    own = Attention(
        num_heads=whole.num_heads,
        num_kv_heads=whole.num_heads,
        head_dim=whole.head_dim,
        v_head_dim=whole.head_dim,
        kind="linear",
        causal=False,
    )
    if f.text("qk_norm") or f.flag("guidance_embeds"):
        raise f.unsupported("qk_norm", "query/key norms and guidance of the distilled Sana are not read")
    heads = f.optional("num_cross_attention_heads", high=MAX_WIDTH) or whole.num_heads
    size = f.optional("cross_attention_head_dim", high=MAX_WIDTH) or whole.head_dim
    cross, inner = heads * size, int(width * f.number("mlp_ratio", default=2.5, high=1000))
    if cross != width:
        raise f.unsupported("num_cross_attention_heads", "a cross-attention of another width is not read")
    text = f.optional("cross_attention_dim", high=MAX_WIDTH) or width
    bias = f.flag("attention_bias")
    block = Block(
        hidden_size=width,
        weights=(
            Weight("scale_shift_table", (6, width), Role.OTHER),
            *attend(width, prefix="attn1", bias=bias),
            *attend(width, text, prefix="attn2"),
            *conv("ff.conv_inverted", (2 * inner, width, 1, 1), bias=True),
            *conv("ff.conv_depth", (2 * inner, 1, 3, 3), bias=True),
            *conv("ff.conv_point", (width, inner, 1, 1)),
        ),
        attention=own,
        cross_attention=Attention(num_heads=heads, num_kv_heads=heads, head_dim=size, v_head_dim=size, causal=False),
        mlp=Mlp(ffn_hidden_size=max(inner, 1), gated=True),
        norm="layer",
        dropout=f.number("dropout") > 0,
        class_name="SanaTransformerBlock",
    )
    patch, channels = f.integer("patch_size", default=1, high=1000), f.integer("in_channels", high=MAX_WIDTH)
    weights = (
        Weight("scale_shift_table", (2, width), Role.OTHER),
        *conv("patch_embed.proj", (width, channels, patch, patch), bias=True),
        *embedder("time_embed.timestep_embedder", width, 256),
        *once("time_embed.linear", 6 * width, width),
        *caption_projection(width, f.integer("caption_channels", high=MAX_WIDTH)),
        *norm("caption_norm", width),
        *linear("proj_out", patch**2 * (f.optional("out_channels", high=MAX_WIDTH) or channels), width, bias=True),
    )
    stack = Stack(block=block, count=f.required("num_layers", high=MAX_LAYERS))
    return diffusion(f, f.model_type, (stack,), weights)


@family("DiTTransformer2DModel")
def dit(f: Fields) -> Architecture:
    """DiT: class-conditional; each block embeds time and class on its own."""
    attention, width = full_attention(f), width_of(f)
    classes = f.integer("num_embeds_ada_norm", default=1000)
    bias = f.flag("attention_bias", default=True)
    block = Block(
        hidden_size=width,
        weights=(
            *embedder("norm1.emb.timestep_embedder", width, 256),
            Weight("norm1.emb.class_embedder", (classes + 1, width), Role.OTHER),
            *once("norm1.linear", 6 * width, width),
            *attend(width, prefix="attn1", bias=bias),
            *feed(width, 4 * width),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=4 * width, gated=False),
        norm="layer",
        class_name="BasicTransformerBlock",
    )
    patch, channels = f.integer("patch_size", default=2, high=1000), f.integer("in_channels", high=MAX_WIDTH)
    weights = (
        *conv("pos_embed.proj", (width, channels, patch, patch), bias=True),
        *once("proj_out_1", 2 * width, width),
        *linear("proj_out_2", patch**2 * (f.optional("out_channels", high=MAX_WIDTH) or channels), width, bias=True),
    )
    stack = Stack(block=block, count=f.required("num_layers", high=MAX_LAYERS))
    return diffusion(f, f.model_type, (stack,), weights)
