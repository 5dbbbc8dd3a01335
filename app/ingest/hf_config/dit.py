"""Pieces that diffusion transformers share: modulations, embedders, attention and feed-forward under diffusers' names.

A modulation or a time embedding runs once a sample, not once a token, so its matrix is ``Role.OTHER``: it counts as
parameters and not as FLOPs for each token.
"""

from __future__ import annotations

from typing import Literal

from app.domain.model.architecture import Architecture, Attention, Role, Stack, Weight
from app.domain.model.weights import linear, norm, two_layer_mlp
from app.ingest.hf_config.fields import MAX_WIDTH, Fields

_TIME_CHANNELS = 256  # sinusoidal channels in front of every diffusers time embedding


def width_of(f: Fields) -> int:
    """Width of the residual stream: heads × head size."""
    return f.required("num_attention_heads", high=MAX_WIDTH) * f.required("attention_head_dim", high=MAX_WIDTH)


def full_attention(f: Fields) -> Attention:
    """Every token sees every token."""
    heads = f.required("num_attention_heads", high=MAX_WIDTH)
    size = f.required("attention_head_dim", high=MAX_WIDTH)
    return Attention(num_heads=heads, num_kv_heads=heads, head_dim=size, v_head_dim=size, causal=False)


def once(name: str, out_features: int, in_features: int) -> tuple[Weight, ...]:
    """A dense layer with bias that runs once a sample."""
    matrix = Weight(name, (out_features, in_features), Role.OTHER)
    return (matrix, Weight(f"{name}.bias", (out_features,), Role.BIAS))


def embedder(name: str, out_features: int, in_features: int) -> tuple[Weight, ...]:
    """Two dense layers that turn a time step, a guidance scale or a pooled text vector into the width."""
    return once(f"{name}.linear_1", out_features, in_features) + once(f"{name}.linear_2", out_features, out_features)


def time_text_embed(f: Fields, width: int, *, guidance: bool, pooled: str = "pooled_projection_dim") -> tuple[Weight, ...]:
    """Time step, pooled text and, where distilled, guidance."""
    found = embedder("timestep_embedder", width, _TIME_CHANNELS)
    found += embedder("text_embedder", width, f.integer(pooled, high=MAX_WIDTH))
    return found + (embedder("guidance_embedder", width, _TIME_CHANNELS) if guidance else ())


def caption_projection(width: int, text: int) -> tuple[Weight, ...]:
    """Two dense layers over the text tokens."""
    return (
        *linear("caption_projection.linear_1", width, text, bias=True),
        *linear("caption_projection.linear_2", width, width, bias=True),
    )


def attend(width: int, keys: int | None = None, *, prefix: str = "attn", bias: bool = True) -> tuple[Weight, ...]:
    """to_q, to_k, to_v and to_out; ``keys`` is the width of what is attended to."""
    source = width if keys is None else keys
    return (
        *linear(f"{prefix}.to_q", width, width, bias=bias),
        *linear(f"{prefix}.to_k", width, source, bias=bias),
        *linear(f"{prefix}.to_v", width, source, bias=bias),
        *linear(f"{prefix}.to_out.0", width, width, bias=True),
    )


def feed(width: int, inner: int, *, prefix: str = "ff", bias: bool = True) -> tuple[Weight, ...]:
    """The two-matrix feed-forward."""
    return two_layer_mlp(width, inner, (f"{prefix}.net.0.proj", f"{prefix}.net.2"), bias=bias)


def qk_norms(size: int, *names: str, bias: bool = False) -> tuple[Weight, ...]:
    """Normalisations of queries and keys."""
    return tuple(weight for name in names for weight in norm(name, size, bias=bias))


def diffusion(
    f: Fields,
    name: str,
    stacks: tuple[Stack, ...],
    weights: tuple[Weight, ...],
    *,
    kind: Literal["diffusion"] = "diffusion",
) -> Architecture:
    """A denoiser: no vocabulary, no head to tie."""
    return Architecture(
        name="",
        family=f.model_type,
        kind=kind,
        hidden_size=stacks[0].block.hidden_size,
        vocab_size=0,
        tied_embeddings=False,
        stacks=stacks,
        weights=weights,
        model_class=name,
    )
