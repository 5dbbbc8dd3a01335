"""Image encoders on their own: ViT, DeiT, DINOv2.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import gated_mlp, linear, norm, norms, two_layer_mlp
from app.ingest.hf_config.classic import dropping, projections
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.outline import class_name_of, label_count, no_such_head, task_of
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.vision import VitSizes, patch_conv, patches

_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _architecture(f: Fields, stack: Stack, weights: tuple[Weight, ...], name: str) -> Architecture:
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder",
        hidden_size=stack.block.hidden_size,
        vocab_size=0,
        tied_embeddings=False,
        stacks=(stack,),
        weights=weights,
        max_seq_len=stack.tokens,
        model_class=name,
    )


def _head(f: Fields, width: int, *, pooler: int | None) -> tuple[Weight, ...]:
    """A pooler under the bare model, a classifier under ForImageClassification (none for no labels)."""
    task = task_of(f, "image")
    if task == "base":
        return linear("pooler.dense", pooler, width, bias=True) if pooler else ()
    if task != "image":
        raise no_such_head(f)
    labels = label_count(f)
    return (Weight("classifier", (labels, width), Role.HEAD), Weight("classifier.bias", (labels,), Role.BIAS))


@family("vit", "deit", classes=("ViTForImageClassification",))
def vit(f: Fields) -> Architecture:
    """ViT and DeiT: class token (DeiT also a distillation token), learned positions, pre-norm layers."""
    prefix, extra = ("ViT", 1) if f.model_type == "vit" else ("DeiT", 2)
    sizes = VitSizes.read(f)
    hidden, tokens = sizes.hidden_size, patches(f) + extra
    bias = f.flag("qkv_bias", default=True)
    attention = projections(hidden, sizes.attention, names=_NAMES, bias=(bias, bias, bias, True))
    block = sizes.block(f"{prefix}Layer", attention, ("layernorm_before", "layernorm_after"), dropout=dropping(f, *_DROPOUT))
    weights = (
        Weight("special_tokens", (1, 1, hidden), Role.OTHER, extra),
        Weight("position_embeddings", (1, tokens, hidden), Role.OTHER),
        *patch_conv(f, "projection", hidden, bias=True),
        *norm("layernorm", hidden, bias=True),
        *_head(f, hidden, pooler=f.optional("pooler_output_size") or hidden),
    )
    stack = Stack(block=block, count=sizes.num_layers, tokens=tokens)
    return _architecture(f, stack, weights, class_name_of(f) or f"{prefix}ForImageClassification")


@family("dinov2", "dinov2_with_registers", classes=("Dinov2Model",))
def dinov2(f: Fields) -> Architecture:
    """DINOv2: scaled branches, a plain or SwiGLU feed-forward of mlp_ratio, a mask token."""
    registers = f.integer("num_register_tokens", default=4) if f.model_type != "dinov2" else 0
    prefix = "Dinov2WithRegisters" if registers else "Dinov2"
    ratio = f.integer("mlp_ratio", default=4, high=1000)
    width = f.required("hidden_size")
    sizes = VitSizes.read(f.replaced(intermediate_size=width * ratio))
    hidden, tokens = sizes.hidden_size, patches(f) + 1
    gated = f.flag("use_swiglu_ffn")
    ffn = (int(sizes.ffn * 2 / 3) + 7) // 8 * 8 if gated else sizes.ffn
    bias = f.flag("qkv_bias", default=True)
    feed = gated_mlp(hidden, ffn, bias=True) if gated else two_layer_mlp(hidden, ffn, ("fc1", "fc2"))
    block = Block(
        hidden_size=hidden,
        weights=(
            *projections(hidden, sizes.attention, names=_NAMES, bias=(bias, bias, bias, True)),
            *feed,
            *norms(("norm1", "norm2"), hidden, bias=True),
            Weight("layer_scale.lambda1", (hidden,), Role.OTHER, 2),
        ),
        attention=sizes.attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=gated),
        norm="layer",
        dropout=dropping(f, *_DROPOUT),
        class_name=f"{prefix}Layer",
    )
    weights = (
        Weight("cls_token", (1, 1, hidden), Role.OTHER),
        *((Weight("mask_token", (1, hidden), Role.OTHER),) if f.flag("use_mask_token", default=True) else ()),
        *((Weight("register_tokens", (1, registers, hidden), Role.OTHER),) if registers else ()),
        Weight("position_embeddings", (1, tokens, hidden), Role.OTHER),
        *patch_conv(f, "projection", hidden, bias=True),
        *norm("layernorm", hidden, bias=True),
    )
    if task_of(f, "base") != "base":
        weights += _head(f, 2 * hidden, pooler=None)
    stack = Stack(block=block, count=sizes.num_layers, tokens=tokens + registers)
    return _architecture(f, stack, weights, class_name_of(f) or f"{prefix}Model")
