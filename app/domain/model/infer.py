"""Architectures from a few numbers: the dimensions of a decoder, or only its size. Whatever is assumed is said."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from app.domain.errors import InvalidRequestError
from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Moe, Numerics, Stack, Weight
from app.domain.model.parameters import block_expert_params, counted_params, outside_params
from app.domain.model.weights import embedding, experts, gated_mlp, grouped_attention, head, norm, plain_mlp
from app.domain.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Dimensions of a decoder as a request gives them.

    Attributes:
        total_params: the user's own count, which overrides the sum of the tensors.
        num_experts, experts_per_token: for mixtures of experts; ``ffn_hidden_size`` is then the width of one expert.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    total_params: int | None = None
    num_experts: int | None = None
    experts_per_token: int | None = None


def architecture_from_shape(shape: Shape, *, name: str = "custom shape") -> Architecture:
    """A decoder of these dimensions: RMS norms, no biases when gated; layer norms and biases when plain, as GPT-style models have.

    The code of a GPT-style model takes the loss of its 16-bit logits as they are (GPTBigCode, Bloom, Falcon, GPT-NeoX, MPT);
    Llama's casts them to fp32 first.

    Raises:
        InvalidRequestError: heads are not a multiple of key/value heads, experts_per_token exceeds num_experts, or total_params leaves
            nothing for the blocks.

    Example:
        >>> from app.domain.model.parameters import total_params
        >>> llama = Shape(num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_hidden_size=14336,
        ...     vocab_size=128256)
        >>> total_params(architecture_from_shape(llama))
        8030261248
    """
    _check(shape)
    plain = not shape.gated_mlp
    attention = Attention(num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, v_head_dim=shape.head_dim)
    weights: list[Weight] = [
        *norm("input_norm", shape.hidden_size, bias=plain),
        *norm("post_attention_norm", shape.hidden_size, bias=plain),
    ]
    weights += grouped_attention(shape.hidden_size, attention, qkv_bias=plain, out_bias=plain)
    moe, mlp = None, None
    if shape.num_experts:
        moe = Moe(
            num_experts=shape.num_experts, experts_per_token=shape.experts_per_token or 1, expert_ffn_hidden_size=shape.ffn_hidden_size,
            gated=shape.gated_mlp,
        )  # fmt: skip
        weights += experts(shape.hidden_size, moe)
    else:
        mlp = Mlp(ffn_hidden_size=shape.ffn_hidden_size, gated=shape.gated_mlp)
        weights += (plain_mlp if plain else gated_mlp)(shape.hidden_size, shape.ffn_hidden_size, bias=plain)
    block = Block(
        hidden_size=shape.hidden_size, weights=tuple(weights), attention=attention, mlp=mlp, moe=moe, norm="layer" if plain else "rms",
        class_name="" if plain or moe else "LlamaDecoderLayer",
    )  # fmt: skip
    outside = [embedding("embed_tokens", shape.vocab_size, shape.hidden_size), *norm("final_norm", shape.hidden_size, bias=plain)]
    if not shape.tied_embeddings:
        outside += head(shape.vocab_size, shape.hidden_size)
    model = Architecture(
        name=name, family="shape", kind="decoder", hidden_size=shape.hidden_size, vocab_size=shape.vocab_size,
        tied_embeddings=shape.tied_embeddings, stacks=(Stack(block=block, count=shape.num_layers),), weights=tuple(outside),
        model_class="" if plain or moe else "LlamaForCausalLM", params_override=shape.total_params,
        numerics=Numerics(upcasts_logits=not plain),
    )  # fmt: skip
    _check_total(model)
    return model


_HEAD_DIMS = (64, 80, 96, 112, 120, 128, 160, 192, 256)
"""Head widths of published decoders."""
_COUNT_AGREES, _COUNT_DIFFERS = 1e-3, 5e-3
"""Relative differences of a count that biases and norms explain, and that they do not."""


def architecture_without_head_dim(shape: Shape) -> Architecture:
    """A decoder whose head width was not given: ``shape.head_dim`` is hidden_size / num_heads unless ``total_params`` says otherwise.

    Qwen3, Gemma and Mistral Nemo have heads wider than that. Where the tensors then miss the given total by more than half a per
    cent and one published head width meets it within a per mille, that width is taken, and said.

    Example: Qwen3-32B has 64 heads of 128 over a hidden size of 5,120.
        >>> qwen = Shape(num_layers=64, hidden_size=5120, num_heads=64, num_kv_heads=8, head_dim=80, ffn_hidden_size=25600,
        ...     vocab_size=151936, total_params=32_762_123_264)
        >>> architecture_without_head_dim(qwen).main_block.attention.head_dim
        128
    """
    plain = architecture_from_shape(shape)
    total = shape.total_params
    if not total or abs(counted_params(plain) / total - 1) <= _COUNT_DIFFERS:
        return plain
    for head_dim in _HEAD_DIMS:
        other = architecture_from_shape(replace(shape, head_dim=head_dim))
        if abs(counted_params(other) / total - 1) <= _COUNT_AGREES:
            said = (
                f"head_dim was not given; it is taken as {head_dim} instead of hidden_size / num_heads = {shape.head_dim}, "
                f"because only then do the tensors add up to the total_params given ({total:,})."
            )
            return replace(other, inferred=(said,))
    return plain


# Layers and width of published Llama-style decoders: sizes between them are interpolated in the logarithm.
_KNOWN_SIZES = (
    (1.1e8, 12, 768), (3.5e8, 24, 1024), (1.24e9, 16, 2048), (3.2e9, 28, 3072), (8.0e9, 32, 4096), (1.3e10, 40, 5120), (3.3e10, 60, 6656),
    (7.0e10, 80, 8192), (1.8e11, 96, 12288), (4.05e11, 126, 16384), (1e12, 160, 20480),
)  # fmt: skip
# Vocabularies of the usual decoders: GPT-2's padded one below a billion parameters, Llama 3's from there on.
_SMALL_VOCAB, _VOCAB, _VOCAB_FROM = 50_304, 128_256, 1e9


def architecture_from_params(params: float) -> Architecture:
    """A Llama-style decoder of about this many parameters; the count used is exactly the one given.

    The nearest published size gives depth and width; heads are 128 wide, the feed-forward 8/3 of the width. What is smaller than the
    embedding and head of the smallest published one is taken as a narrower model with fewer words, half of it embedding and head.

    Example:
        >>> model = architecture_from_params(7.5e9)
        >>> model.num_layers, model.hidden_size, model.inferred[0][:46]
        (32, 4096, 'Only a parameter count (7.5 B) was given: the ')
    """
    size, layers, hidden = min(_KNOWN_SIZES, key=lambda known: abs(math.log(known[0] / params)))
    layers = max(1, round(layers * params / size)) if params < _KNOWN_SIZES[0][0] or params > _KNOWN_SIZES[-1][0] else layers
    heads = max(1, hidden // 128)
    vocab = _VOCAB if params >= _VOCAB_FROM else _SMALL_VOCAB
    ffn = _usual_ffn(hidden, 256)
    shape = Shape(
        num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=heads, head_dim=128, ffn_hidden_size=ffn, vocab_size=vocab,
        total_params=round(params),
    )  # fmt: skip
    if (2 * vocab + 1) * hidden >= params:
        shape = _narrow_shape(round(params))
        layers, hidden, heads, ffn, vocab = shape.num_layers, shape.hidden_size, shape.num_heads, shape.ffn_hidden_size, shape.vocab_size
    base = architecture_from_shape(shape, name=f"{format_count(params)} parameters")
    said = (
        f"Only a parameter count ({format_count(params)}) was given: the shape is taken as {layers} layers, hidden size {hidden:,}, "
        f"{heads} heads, feed-forward {ffn:,}, vocabulary {vocab:,}; activations and speed follow that guess."
    )
    return replace(base, family="params", inferred=(said,))


_WIDTHS, _DEPTH = (512, 256, 128, 64, 32, 16), 4
"""Widths of models too small for the published ones, of which half the parameters make so many blocks at least."""


def _narrow_shape(params: int) -> Shape:
    """The widest model that has a few blocks in one half of its parameters, and its embedding and head in the other."""

    def block(hidden: int) -> int:
        return (4 * hidden + 3 * _usual_ffn(hidden, hidden) + 2) * hidden

    hidden = next((width for width in _WIDTHS if 2 * _DEPTH * block(width) <= params), _WIDTHS[-1])
    vocab = max(1, min(_SMALL_VOCAB, params // 2 // (2 * hidden)))
    layers = max(1, (params - (2 * vocab + 1) * hidden) // block(hidden))
    heads = max(1, hidden // 128)
    return Shape(
        num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=heads, head_dim=hidden // heads,
        ffn_hidden_size=_usual_ffn(hidden, hidden), vocab_size=vocab, total_params=params,
    )  # fmt: skip


def _usual_ffn(hidden: int, multiple: int) -> int:
    """8/3 of the width, up to a multiple."""
    return -(-hidden * 8 // 3 // multiple) * multiple


def _check_total(model: Architecture) -> None:
    """A total that differs from the tensors is spread over the blocks, so it has to exceed what is not theirs to give."""
    total, experts = model.params_override, sum(block_expert_params(s.block) * s.owned for s in model.stacks)
    fixed = outside_params(model) + experts
    if total is not None and total <= fixed:
        what = "embedding, head and experts" if experts else "embedding and head"
        raise InvalidRequestError.at(
            "model", "shape", "total_params",
            msg=f"total_params {total:,} leaves nothing for the blocks: {what} alone have {fixed:,}",
            hint=f"leave it out, for the tensors have {counted_params(model):,} in all",
        )  # fmt: skip


def _check(shape: Shape) -> None:
    if shape.num_heads % shape.num_kv_heads:
        raise InvalidRequestError.at(
            "model", "shape", "num_kv_heads", msg=f"num_kv_heads {shape.num_kv_heads} does not divide num_heads {shape.num_heads}",
            hint="each key/value head serves a whole number of query heads",
        )  # fmt: skip
    if shape.num_experts and (shape.experts_per_token or 1) > shape.num_experts:
        raise InvalidRequestError.at(
            "model",
            "shape",
            "experts_per_token",
            msg=f"experts_per_token {shape.experts_per_token} exceeds num_experts {shape.num_experts}",
            hint=f"use at most {shape.num_experts}",
        )
