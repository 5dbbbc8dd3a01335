"""How fast a matrix product of a given shape runs: the best rate, and the operands that have to come from memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.domain.model.architecture import Architecture, Role, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The products of one kind that a token goes through in all blocks, forward.

    Attributes:
        flops: FLOPs per token of the main sequence.
        thin: mean of 1/K + 1/N over them, weighted by FLOPs; 1/elements.
        split: what each further tensor rank adds to that mean: it divides one side of every matrix.
        sides: Σ K + N: elements that go in and come out per token.
        weights: elements of the matrices themselves, all experts.
    """

    flops: float
    thin: float
    split: float
    sides: float
    weights: float


def products_of(model: Architecture, seq_len: int, *, routed: bool) -> Products:
    """Sum the dense layers of all blocks, or their routed experts (each token through ``experts_per_token`` of them).

    Example: one 4096 × 4096 matrix has 1/K + 1/N = 1/2048.
        >>> from app.domain.model.architecture import Block, Stack
        >>> block = Block(hidden_size=4096, weights=(Weight("q_proj", (4096, 4096)),))
        >>> model = Architecture(name="", family="", kind="decoder", hidden_size=4096, vocab_size=0, tied_embeddings=False,
        ...                      stacks=(Stack(block=block, count=2),))
        >>> found = products_of(model, 128, routed=False)
        >>> found.flops == 4 * 4096**2, found.thin == 1 / 2048, found.sides
        (True, True, 16384.0)
    """
    flops = thin = split = sides = weights = 0.0
    for weight, times, share in _matrices(model, seq_len, routed):
        rows, columns = weight.shape[-2:] if len(weight.shape) > 1 else (weight.shape[0], 1)
        part = 2.0 * weight.numel * times * share
        flops += part
        thin += part * (1 / rows + 1 / columns)
        split += part / max(rows, columns)
        sides += part / 2 * (1 / rows + 1 / columns)
        weights += weight.numel * times
    total = flops or 1.0
    return Products(flops=flops, thin=thin / total, split=split / total, sides=sides, weights=weights)


def _matrices(model: Architecture, seq_len: int, routed: bool) -> Iterator[tuple[Weight, int, float]]:
    """Matrices with how often they run and which share of a main-sequence token passes through them."""
    for stack in model.stacks:
        tokens = 1.0 if stack.tokens is None else stack.tokens / seq_len
        moe = stack.block.moe
        for weight in stack.block.weights:
            expert = weight.role is Role.EXPERT and moe is not None
            if expert and routed and moe:
                yield weight, stack.count, tokens * moe.experts_per_token / moe.num_experts
            elif not expert and not routed and weight.role in (Role.LINEAR, Role.CONV):
                yield weight, stack.count, tokens


def operand_share(rows: Any, thin: Any, balance: Any) -> Any:
    """Share of the best rate that a product reaches whose operands and result go through memory once.

    Equation: 1 / (1 + balance · (1/M + 1/K + 1/N))

    Args:
        rows: M, tokens of the micro-batch (of one expert).
        thin: 1/K + 1/N of the matrix, in 1/elements.
        balance: FLOPs the device does at its best rate in the time half an operand element takes: rate · bytes / (2 · bandwidth).

    Returns:
        Between 0 and 1: few tokens and narrow matrices are bound by memory.

    Source: the roofline of a matrix product, 2·M·K·N FLOPs over M·K + K·N + M·N elements.

    Example: an A100 (240 TFLOP/s, 1.6 TB/s) with 2048 tokens and a 5120 × 5120 matrix in 16 bits.
        >>> round(operand_share(2048, 2 / 5120, 240e12 * 2 / (2 * 1.6e12)), 2)
        0.88
    """
    return 1.0 / (1.0 + balance * (1.0 / rows + thin))
