"""What tensor parallelism leaves whole on every rank, and over how many ranks the loss is split.

Tensor-parallel ranks split the matrices of a block and the tensors between them. The residual stream, its norms and their dropout
masks are split only where the engine adds sequence parallelism; DeepSpeed's AutoTP and Megatron's classic layers do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.memory.block_backward import norm_work
from app.domain.memory.saved import Compute, attention_norms_saved, norms_saved
from app.domain.model.architecture import Block
from app.domain.setup import Array, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Bytes per token of one block that every tensor rank has: of ``Saved`` by policy, and of each of its ``operations``."""

    none: float
    selective: float
    full: float
    operations: tuple[float, float, float, float, float]


def residual_ranks(columns: Columns) -> Array:
    """Ranks that split the residual stream: the tensor ranks under FSDP2's sequence-parallel plan, one rank elsewhere.

    Source: torchtitan's parallelize plans (SequenceParallel norms); DeepSpeed module_inject/layers.py (an all-reduce after each
    row-parallel matrix, so that every rank has the whole output).
    """
    ranks: Array = np.where(columns.fsdp2 > 0, columns.tp, 1)
    return ranks


def vocabulary_ranks(columns: Columns) -> Array:
    """Ranks that split the logits while the loss is computed: the tensor ranks under a vocabulary-parallel loss, else one.

    torchtitan's plan keeps the vocabulary split. DeepSpeed's AutoTP sums the head's output over the ranks (LmHeadLinearAllreduce)
    unless it is told to split it, as the emitted file does at stage 3 (``vocab_parallel_lm_head``); a loss function of a pipeline
    is given the whole output.

    Source: torchtitan (loss_parallel); DeepSpeed 0.19.8 runtime/engine.py and module_inject/layers.py.
    """
    ranks: Array = np.where((columns.deepspeed > 0) & (columns.gathers > 0), columns.tp, residual_ranks(columns))
    return ranks


def replicated_per_token(block: Block, compute: Compute) -> Whole:
    """Of ``saved_per_token``, what each tensor rank keeps whole without sequence parallelism, in bytes per token of one block.

    Equation: 10h of a GPT block's 34h (norm inputs and outputs and the masks of two dropouts); a checkpointed input is whole as well,
    and so are the copies of a token that are routed to experts.

    Source: Korthikanti et al., equation 2: s·b·h·(10 + 24/t + 5as/(ht)).

    Example: 16-bit GPT with dropout.
        >>> from app.domain.model.architecture import Attention, Mlp
        >>> gpt = Block(hidden_size=1024, weights=(), norm="layer", dropout=True, mlp=Mlp(ffn_hidden_size=4096, gated=False),
        ...     attention=Attention(num_heads=16, num_kv_heads=16, head_dim=64, v_head_dim=64))
        >>> how = Compute(bytes=2, autocast=False, kernel="eager", seq_len=1024, adapter=None, tiled_mlp=False)
        >>> replicated_per_token(gpt, how).none / 1024
        10.0
    """
    h = block.hidden_size
    stream = float((4 if compute.wide_residual else 2) * h)
    norms = norms_saved(block, compute)
    routed = block.moe.experts_per_token * 2 * compute.bytes * h + 12.0 * block.moe.num_experts if block.moe else 0.0
    first, norm = attention_norms_saved(block, compute), norm_work(block)
    at_work = (norms + routed + compute.bytes * h, first + norm, first + stream, norms if compute.tiled_mlp else first, norm)
    return Whole(none=norms + routed, selective=min(norms, 2 * stream), full=stream, operations=at_work)


def gathered_per_token(block: Block, compute: Compute) -> Whole:
    """What each tensor rank has whole although sequence parallelism splits the stream, in bytes per token of one block.

    The inputs of attention and feed-forward are gathered before their first matrices, which save them whole for the gradient of
    their weights; in backward the gradient of one of them is whole until it is scattered. A checkpointed block keeps neither.

    Equation: 2 · b · h kept; at work those not yet through, and b · h.

    Source: torch.distributed.tensor (a gathered input is an ordinary saved tensor); Korthikanti et al., section 4.2.2, on gathering
    again in backward, which Megatron does and torch does not.

    Example:
        >>> how = Compute(bytes=2, autocast=False, kernel="flash", seq_len=1024, adapter=None, tiled_mlp=False)
        >>> gathered_per_token(Block(hidden_size=1024, weights=()), how).none / 1024
        4.0
    """
    wide = compute.bytes * block.hidden_size
    return Whole(none=2 * wide, selective=0.0, full=0.0, operations=(3 * wide, wide, 2 * wide, 2 * wide, wide))
