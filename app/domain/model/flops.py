"""FLOPs of one token: dense layers, attention scores, output head; a multiply-add is 2."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.model.architecture import Architecture, Attention, Block, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """FLOPs of the forward pass per token of the main sequence.

    Attributes:
        linear: dense layers and chosen experts inside the blocks.
        attention: scores and values, the masked half not counted where the mask is causal.
        attention_full: the same with the mask not exploited, as MFU conventions count it.
        head: output head.
    """

    linear: float
    attention: float
    attention_full: float
    head: float


def forward_flops(model: Architecture, seq_len: int) -> ForwardFlops:
    """Forward FLOPs per token.

    Equation: 2·N_matmul + 2·L·a·(d_qk + d_v)·s_seen/2 (causal) + 2·h·V

    Args:
        model: the architecture.
        seq_len: tokens of one sequence.

    Returns:
        FLOPs per token of the main sequence; encoder and vision stacks are spread over its tokens.

    Assumes: element-wise work, norms and softmax are left out, as every convention does.

    Source: Narayanan et al., Megatron, appendix; torchtitan models/utils.py.
    """
    linear = attention = attention_full = 0.0
    for stack in model.stacks:
        share = 1.0 if stack.tokens is None else stack.tokens / seq_len
        length = seq_len if stack.tokens is None else stack.tokens
        linear += 2 * matmul_params(stack.block) * stack.count * share
        for layer in (stack.block.attention, stack.block.cross_attention):
            if layer:
                attention += attention_flops(layer, length, exploit_mask=True) * stack.count * share
                attention_full += attention_flops(layer, length, exploit_mask=False) * stack.count * share
    head = 2.0 * model.hidden_size * model.vocab_size
    return ForwardFlops(linear=linear, attention=attention, attention_full=attention_full, head=head)


def matmul_params(block: Block) -> int:
    """Weights that multiply a token's activations in one block: dense layers, and the experts it is routed to."""
    total = 0
    for weight in block.weights:
        if weight.role is Role.EXPERT and block.moe:
            total += weight.numel * block.moe.experts_per_token // block.moe.num_experts
        elif weight.role in (Role.LINEAR, Role.CONV):
            total += weight.numel
    return total


def attention_flops(attention: Attention, length: int, *, exploit_mask: bool) -> float:
    """Score and value products of one layer for one token: 2·a·(d_qk + d_v)·seen.

    Example: Llama-3-8B at 8,192 tokens, mask exploited.
        >>> layer = Attention(num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)
        >>> attention_flops(layer, 8192, exploit_mask=True)
        67108864.0
    """
    per_key = 2.0 * attention.num_heads * (attention.head_dim + attention.v_head_dim)
    if attention.kind == "linear":
        return per_key * attention.head_dim
    seen = length if attention.window is None else min(length, attention.window)
    if attention.causal and exploit_mask and seen == length:
        return per_key * length / 2
    return per_key * seen
