"""Counting parameters: total, active for one token, and what is where.

Every function sums the tensors an ``Architecture`` lists, so a count is exact whenever the list is.
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Block, Role, Weight


def block_params(block: Block) -> int:
    """Parameters of one block, all experts included.

    Source: facts checked tensor by tensor against transformers on the meta device (tests/ingest).
    """
    return sum(w.numel for w in block.weights)


def block_active_params(block: Block) -> int:
    """Parameters one token passes through in one block: routed experts count as experts_per_token of num_experts.

    Equation: Σ dense + Σ expert × experts_per_token / num_experts
    """
    return sum(_active_numel(w, block) for w in block.weights)


def block_expert_params(block: Block) -> int:
    """Parameters of the routed experts of one block."""
    return sum(w.numel for w in block.weights if w.role is Role.EXPERT)


def counted_params(model: Architecture) -> int:
    """Parameters the tensor list adds up to, tied tensors counted once."""
    return outside_params(model) + sum(block_params(s.block) * s.owned for s in model.stacks)


def total_params(model: Architecture) -> int:
    """Parameters of the model: the user's own figure where one was given, else the exact count."""
    return counted_params(model) if model.params_override is None else model.params_override


def active_params(model: Architecture) -> int:
    """Parameters one token uses: total minus the routed experts not selected."""
    idle = sum((block_params(s.block) - block_active_params(s.block)) * s.owned for s in model.stacks)
    return total_params(model) - idle


def is_moe(model: Architecture) -> bool:
    """Whether any block routes tokens to experts."""
    return any(s.block.moe for s in model.stacks)


def outside_params(model: Architecture) -> int:
    """Parameters outside the repeated blocks: embeddings, positions, final norm, head, projectors."""
    return sum(w.numel for w in model.weights)


def largest_tensor_numel(model: Architecture) -> int:
    """Elements of the largest single tensor: it is gathered and reduced whole."""
    shapes = [w for s in model.stacks for w in s.block.weights] + list(model.weights)
    return max(w.numel // w.copies for w in shapes)


def _active_numel(weight: Weight, block: Block) -> int:
    if weight.role is not Role.EXPERT or block.moe is None:
        return weight.numel
    return weight.numel * block.moe.experts_per_token // block.moe.num_experts
