"""Vision towers that sit beside a language model: CLIP, SigLIP, Pixtral, Idefics, InternViT.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.model.architecture import Attention, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import conv, gated_mlp, linear, norm, norms, two_layer_mlp
from app.ingest.hf_config.classic import Classic, dropping, projections
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.registry import SECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A tower: its layers, its tensors outside them, and the width it hands over."""

    stacks: tuple[Stack, ...]
    weights: tuple[Weight, ...]
    hidden_size: int


TowerReader = Callable[[Fields], Tower]
TOWERS: dict[str, TowerReader] = {}

_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def tower(*model_types: str) -> Callable[[TowerReader], TowerReader]:
    """Register a reader of a ``vision_config`` under its model_types."""

    def register(reader: TowerReader) -> TowerReader:
        for model_type in model_types:
            TOWERS[model_type] = reader
            SECTIONS.add(model_type)
        return reader

    return register


def read_tower(f: Fields) -> Tower:
    """The tower of a ``vision_config``.

    Raises:
        UnsupportedModelError: a model_type without a reader.
    """
    reader = TOWERS.get(f.model_type)
    if reader is None:
        raise f.unsupported("model_type", f"{f.model_type[:80]!r} is not a vision tower that can be counted exactly")
    return reader(f)


def sides(f: Fields, name: str, default: int | None = None) -> tuple[int, int]:
    """A size given as one number or as a pair."""
    if isinstance(f.raw(name), list | tuple):
        pair = f.integers(name, low=1) or ()
        if len(pair) not in (1, 2):
            raise f.invalid(name, f"{len(pair)} numbers where one or two are expected")
        return pair[0], pair[-1]
    listed = None if f.raw(name) is not None else f.class_list(name)
    if listed:
        return listed[0], listed[-1]
    size = f.integer(name, default=default)
    return size, size


def patches(f: Fields) -> int:
    """Patches of one image."""
    image, patch = sides(f, "image_size"), sides(f, "patch_size")
    return max((image[0] // patch[0]) * (image[1] // patch[1]), 1)


def patch_conv(f: Fields, name: str, hidden: int, *, bias: bool) -> tuple[Weight, ...]:
    """The convolution that turns patches into vectors."""
    patch = sides(f, "patch_size")
    return conv(name, (hidden, f.integer("num_channels", default=3, high=MAX_WIDTH), *patch), bias=bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class VitSizes:
    """The sizes every vision transformer has."""

    hidden_size: int
    ffn: int
    num_layers: int
    attention: Attention

    @classmethod
    def read(cls, f: Fields, *, causal: bool = False) -> VitSizes:
        """Read and check them."""
        hidden = f.required("hidden_size", high=MAX_WIDTH)
        heads = f.required("num_attention_heads", high=MAX_WIDTH)
        if hidden % heads and not f.missing:
            raise f.invalid("num_attention_heads", f"hidden_size {hidden} is not a multiple of {heads}")
        size = max(hidden // heads, 1)
        return cls(
            hidden_size=hidden,
            ffn=f.required("intermediate_size"),
            num_layers=f.required("num_hidden_layers", high=MAX_LAYERS),
            attention=Attention(num_heads=heads, num_kv_heads=heads, head_dim=size, v_head_dim=size, causal=causal),
        )

    def block(
        self,
        class_name: str,
        attention_weights: tuple[Weight, ...],
        norm_names: tuple[str, str],
        *,
        mlp_names: tuple[str, str] = ("fc1", "fc2"),
        dropout: bool = False,
    ) -> Block:
        """A layer of the plain kind: two layer norms, a two-matrix feed-forward, biases in both."""
        return Classic(
            class_name=class_name,
            hidden_size=self.hidden_size,
            attention_weights=attention_weights,
            ffn=self.ffn,
            mlp_names=mlp_names,
            norm_names=norm_names,
            dropout=dropout,
        ).block(self.attention)


def clip_block(f: Fields, sizes: VitSizes, class_name: str) -> Block:
    """The layer that CLIP, SigLIP and Idefics share: biases everywhere, two layer norms, fc1 and fc2."""
    attention = projections(sizes.hidden_size, sizes.attention, names=_NAMES, bias=(True,) * 4)
    return sizes.block(class_name, attention, ("layer_norm1", "layer_norm2"), dropout=dropping(f, "attention_dropout", "dropout"))


@tower("clip_vision_model")
def clip_vision(f: Fields) -> Tower:
    """CLIP's tower: class token, learned positions, a norm before and after."""
    sizes = VitSizes.read(f)
    hidden, tokens = sizes.hidden_size, patches(f) + 1
    block = clip_block(f, sizes, "CLIPEncoderLayer")
    return Tower(
        stacks=(Stack(block=block, count=sizes.num_layers, part="vision", tokens=tokens),),
        weights=(
            Weight("class_embedding", (hidden,), Role.OTHER),
            *patch_conv(f, "patch_embedding", hidden, bias=False),
            Weight("position_embedding", (tokens, hidden), Role.OTHER),
            *norms(("pre_layrnorm", "post_layernorm"), hidden, bias=True),
        ),
        hidden_size=hidden,
    )


_SIGLIP_LAYERS = {
    "siglip_vision_model": "SiglipEncoderLayer",
    "idefics2_vision": "Idefics2EncoderLayer",
    "idefics3_vision": "Idefics3EncoderLayer",
    "smolvlm_vision": "SmolVLMEncoderLayer",
}


@tower(*_SIGLIP_LAYERS)
def siglip_vision(f: Fields) -> Tower:
    """SigLIP's tower: no class token; an attention-pooling head unless vision_use_head is off."""
    sizes = VitSizes.read(f)
    hidden, tokens = sizes.hidden_size, patches(f)
    block = clip_block(f, sizes, _SIGLIP_LAYERS[f.model_type])
    pools = f.model_type == "siglip_vision_model" and f.flag("vision_use_head", default=True)
    return Tower(
        stacks=(Stack(block=block, count=sizes.num_layers, part="vision", tokens=tokens),),
        weights=(
            *patch_conv(f, "patch_embedding", hidden, bias=True),
            Weight("position_embedding", (tokens, hidden), Role.OTHER),
            *norm("post_layernorm", hidden, bias=True),
            *(_pooling_head(sizes) if pools else ()),
        ),
        hidden_size=hidden,
    )


def _pooling_head(sizes: VitSizes) -> tuple[Weight, ...]:
    hidden = sizes.hidden_size
    return (
        Weight("head.probe", (1, 1, hidden), Role.OTHER),
        *linear("head.in_proj", 3 * hidden, hidden, bias=True),
        *linear("head.out_proj", hidden, hidden, bias=True),
        *norm("head.layernorm", hidden, bias=True),
        *two_layer_mlp(hidden, sizes.ffn, ("head.fc1", "head.fc2")),
    )


@tower("pixtral")
def pixtral(f: Fields) -> Tower:
    """Pixtral's tower: a Llama block that sees both ways, rotary positions."""
    sizes = VitSizes.read(f)
    hidden = sizes.hidden_size
    block = Block(
        hidden_size=hidden,
        weights=(
            *projections(hidden, sizes.attention, names=("q_proj", "k_proj", "v_proj", "o_proj"), bias=(False,) * 4),
            *gated_mlp(hidden, sizes.ffn),
            *norms(("attention_norm", "ffn_norm"), hidden),
        ),
        attention=sizes.attention,
        mlp=Mlp(ffn_hidden_size=sizes.ffn, gated=True),
        class_name="PixtralAttentionLayer",
    )
    return Tower(
        stacks=(Stack(block=block, count=sizes.num_layers, part="vision", tokens=patches(f)),),
        weights=(*patch_conv(f, "patch_conv", hidden, bias=False), *norm("ln_pre", hidden)),
        hidden_size=hidden,
    )


@tower("internvl_vision")
def internvl_vision(f: Fields) -> Tower:
    """InternViT: scaled branches, optional query/key norms, class token and positions."""
    sizes = VitSizes.read(f)
    hidden, tokens = sizes.hidden_size, patches(f) + 1
    bias = f.flag("attention_bias")
    rms = f.text("norm_type", default="layer_norm") == "rms_norm"
    names = ("q_proj", "k_proj", "v_proj", "projection_layer")
    block = Block(
        hidden_size=hidden,
        weights=(
            Weight("lambda", (hidden,), Role.OTHER, 2),
            *projections(hidden, sizes.attention, names=names, bias=(bias, bias, bias, True)),
            *(norms(("q_norm", "k_norm"), hidden) if f.flag("use_qk_norm") else ()),
            *two_layer_mlp(hidden, sizes.ffn, ("fc1", "fc2")),
            *norms(("layernorm_before", "layernorm_after"), hidden, bias=not rms),
        ),
        attention=sizes.attention,
        mlp=Mlp(ffn_hidden_size=sizes.ffn, gated=False),
        norm="rms" if rms else "layer",
        dropout=dropping(f, "hidden_dropout_prob", "attention_dropout"),
        class_name="InternVLVisionLayer",
    )
    positions = f.flag("use_absolute_position_embeddings", default=True)
    return Tower(
        stacks=(Stack(block=block, count=sizes.num_layers, part="vision", tokens=tokens),),
        weights=(
            Weight("cls_token", (1, 1, hidden), Role.OTHER),
            *((Weight("mask_token", (1, 1, hidden), Role.OTHER),) if f.flag("use_mask_token") else ()),
            *((Weight("position_embeddings", (1, tokens, hidden), Role.OTHER),) if positions else ()),
            *patch_conv(f, "projection", hidden, bias=True),
            *(() if f.flag("use_mean_pooling", default=True) else norm("layernorm", hidden, bias=True)),
        ),
        hidden_size=hidden,
    )
