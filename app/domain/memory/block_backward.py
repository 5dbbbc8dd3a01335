"""The backward of one block: the operations at which it can hold most, and what each of them holds.

A block is taken apart from its output to its input: the feed-forward first, then the norm before it, attention, and the
norm at the input. What was saved for the parts already done is freed; the gradients of their weights are there instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.memory.saved import Compute, attention_norms_saved, mixed_saved, norms_saved, saved_per_token, stores_scores
from app.domain.model.architecture import Block, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is alive of one block during one operation of its backward.

    Attributes:
        bytes_per_token: what is still saved of the block and the temporaries, bytes for one token.
        weights_frac: share of the block's weights whose gradients exist.
    """

    bytes_per_token: float
    weights_frac: float


ABSENT = Operation(bytes_per_token=0.0, weights_frac=0.0)


def operations(block: Block, compute: Compute) -> tuple[Operation, ...]:
    """The candidates for the largest operation, always in the same order, absent ones empty."""
    return (
        feed_forward(block, compute),
        feed_forward_norm(block, compute),
        softmax(block, compute),
        fused_attention(block, compute),
        Operation(bytes_per_token=norm_work(block), weights_frac=1.0),
    )


def feed_forward(block: Block, compute: Compute) -> Operation:
    """The product of gate and up in backward: all that was saved, the gradients around it, and the down projection's.

    Equation: c + b(2f + h); for 2-byte compute the gradients of gate, up and output, 4f + 2h. Of a tiled one, a tile's only.
    """
    f = block.mlp.ffn_hidden_size if block.mlp and not compute.tiled_mlp else 0
    if block.moe:
        f = block.moe.experts_per_token * block.moe.expert_ffn_hidden_size + block.moe.shared_ffn_hidden_size
    down = block.mlp.ffn_hidden_size * block.hidden_size if block.mlp else 0
    work = compute.bytes * (2 * f + block.hidden_size)
    return Operation(bytes_per_token=saved_per_token(block, compute).none + work, weights_frac=_frac(block, down))


def feed_forward_norm(block: Block, compute: Compute) -> Operation:
    """The norm before the feed-forward: attention and its norm are still saved, the feed-forward's gradients are whole.

    Equation: (norms / 2 + attention) + 26h for RMS; e.g. 34h + 4q + 4kv + 4a for Llama in bf16 with flash.

    Assumes: trained norms, each applied to the whole sequence. Recipes that tile their feed-forward run fused norms, which were
    not counted; neither were frozen ones.
    """
    apart = not block.parallel_residual and block.num_norms > 1 and (block.mlp or block.moe)
    if not apart or compute.adapter or compute.tiled_mlp:
        return ABSENT
    left = attention_norms_saved(block, compute) + mixed_saved(block, compute)
    return Operation(bytes_per_token=left + norm_work(block), weights_frac=_frac(block, _feed_forward_numel(block)))


def softmax(block: Block, compute: Compute) -> Operation:
    """The softmax of eager attention: scores, their gradient and the result together, while queries and keys wait.

    Equation: 12as + norms + 3b·q + 2h, with the gradients of the values and of the residual stream (4h in fp32); the output
    projection's gradient is there beside the feed-forward's.
    """
    attention = block.attention
    if attention is None or not stores_scores(attention, compute):
        return ABSENT
    q = attention.num_heads * attention.head_dim
    scores = softmax_bytes(block, compute) * attention.num_heads * compute.seq_len
    residual = (4 if compute.wide_residual else 2) * block.hidden_size
    held = attention_norms_saved(block, compute) + 3 * compute.bytes * q + residual
    return Operation(bytes_per_token=scores + held, weights_frac=_frac(block, _feed_forward_numel(block) + q * block.hidden_size))


def fused_attention(block: Block, compute: Compute) -> Operation:
    """A flash kernel's backward: gradients of its output, queries, keys and values, and fp32 sums of the queries'.

    Equation: norms / 2 + attention + b(2q + k + v) + 4q.
    """
    attention = block.attention
    if attention is None or compute.kernel != "flash" or attention.kind == "linear":
        return ABSENT
    q = attention.num_heads * attention.head_dim
    kv = attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)
    # Behind a tiled feed-forward nothing is known to be freed before.
    norms = norms_saved(block, compute) if compute.tiled_mlp else attention_norms_saved(block, compute)
    held = norms + mixed_saved(block, compute)
    work = compute.bytes * (2 * q + kv) + 4 * q
    return Operation(bytes_per_token=held + work, weights_frac=_frac(block, _feed_forward_numel(block) + q * block.hidden_size))


def softmax_bytes(block: Block, compute: Compute) -> float:
    """Bytes of one score during the softmax's backward: its result, the gradient that arrives and the one that leaves.

    Taken in fp32, or with dropout in the compute dtype. A soft cap keeps its tanh until later.
    """
    wide = compute.wide_residual or not block.dropout
    return (12.0 if wide else 6.0) + (compute.bytes if compute.numerics.softcapped_scores else 0.0)


def norm_work(block: Block) -> float:
    """A normalisation's backward, bytes per token: its fp32 input and temporaries, 26h for unfused RMS, 12h for layer norm."""
    return float((26 if block.norm == "rms" else 12) * block.hidden_size)


def _feed_forward_numel(block: Block) -> int:
    """Weights of the feed-forward, or of the routed experts."""
    if block.moe:
        return sum(w.numel for w in block.weights if w.role is Role.EXPERT)
    if not block.mlp:
        return 0
    return (3 if block.mlp.gated else 2) * block.mlp.ffn_hidden_size * block.hidden_size


def _frac(block: Block, numel: int) -> float:
    total = sum(w.numel for w in block.weights)
    return min(1.0, numel / total) if total else 0.0
