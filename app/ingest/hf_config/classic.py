"""Shared pieces of the older decoders and of plain encoders: layer norm with shifts, two-matrix feed-forward, their own tensor names."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.model.architecture import Attention, Block, Mlp, Stack, Weight
from app.domain.model.weights import linear, norms, two_layer_mlp
from app.ingest.hf_config.fields import MAX_WIDTH, Fields


def wide(f: Fields, hidden_size: int, *names: str) -> int:
    """Width of the feed-forward: the key given, or four times hidden_size where it is null or absent."""
    return f.optional(*names, high=MAX_WIDTH * 100) or 4 * hidden_size


def dropping(f: Fields, *names: str) -> bool:
    """Whether any of these dropout rates is above zero."""
    return any(f.number(name) > 0 for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classic:
    """One block of an older decoder, or of an encoder of the same kind.

    Attributes:
        attention_weights: projections of the attention.
        ffn: width of the feed-forward; ``mlp_names`` its two matrices.
        norm_names: normalisations of the block; ``norm_bias`` whether they have a shift.
        mlp_bias: whether the feed-forward has biases.
    """

    class_name: str
    hidden_size: int
    attention_weights: tuple[Weight, ...]
    ffn: int
    mlp_names: tuple[str, str]
    norm_names: tuple[str, ...]
    norm_bias: bool = True
    mlp_bias: bool = True
    parallel: bool = False
    dropout: bool = False

    def block(self, attention: Attention) -> Block:
        """The block, with the given attention."""
        return Block(
            hidden_size=self.hidden_size,
            weights=(
                *norms(self.norm_names, self.hidden_size, bias=self.norm_bias),
                *self.attention_weights,
                *two_layer_mlp(self.hidden_size, self.ffn, self.mlp_names, bias=self.mlp_bias),
            ),
            attention=attention,
            mlp=Mlp(ffn_hidden_size=self.ffn, gated=False),
            norm="layer",
            num_norms=len(self.norm_names),
            parallel_residual=self.parallel,
            dropout=self.dropout,
            class_name=self.class_name,
        )

    def stack(self, attention: Attention, count: int) -> tuple[Stack, ...]:
        """``count`` equal blocks."""
        return (Stack(block=self.block(attention), count=count),)


def projections(
    hidden_size: int, attention: Attention, *, names: tuple[str, str, str, str], bias: tuple[bool, bool, bool, bool]
) -> tuple[Weight, ...]:
    """Separate q, k, v and output matrices under the family's own names, each with or without its bias."""
    q, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    return (
        *linear(names[0], q, hidden_size, bias=bias[0]),
        *linear(names[1], kv, hidden_size, bias=bias[1]),
        *linear(names[2], kv, hidden_size, bias=bias[2]),
        *linear(names[3], hidden_size, q, bias=bias[3]),
    )
