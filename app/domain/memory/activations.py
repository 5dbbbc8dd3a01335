"""Activation memory: what forward keeps for backward, and what the backward of one block needs on top."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.memory.moments import BACKWARD, BACKWARD_FIRST, BACKWARD_NEXT, BACKWARD_SECOND, FORWARD, IN_BLOCKS, LOSS, REDUCTION
from app.domain.memory.saved import Compute, Saved, saved_per_token
from app.domain.memory.tensor import gathered_per_token, replicated_per_token, residual_ranks
from app.domain.model.architecture import Block, Stack
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """Columns of bytes per token: all blocks as kept, one whole block, and what its backward and its norm need on top."""

    kept_all: Array
    whole: Array
    working: Array
    norm_work: Array


@term(
    title="saved activations",
    equation="tokens × (bytes_per_token / tensor_ranks + replicated) × in_flight",
    source="hf-activations",
    exactness="derived",
    changes_it="activation checkpointing, micro-batch, sequence length",
)
def saved_activation_bytes(tokens: Array, bytes_per_token: Array, in_flight: Array, tensor_ranks: Array, replicated: Array) -> Array:
    """Tensors forward keeps for backward, over all blocks of this GPU.

    Equation: T · m · Σ blocks (c(block, checkpointing) / tp + r(block, checkpointing))

    Args:
        tokens: tokens of one micro-batch on this rank.
        bytes_per_token: bytes kept for one token over all blocks under the checkpointing policy, of what tensor ranks split.
        in_flight: micro-batches a pipeline stage holds at once.
        tensor_ranks: tensor-parallel ranks.
        replicated: bytes for one token that every tensor rank keeps whole: norms and residuals without sequence parallelism.

    Returns:
        Bytes per GPU.

    Source: Korthikanti et al., section 4, with coefficients recounted for today's kernels.

    Example: their equation 2, a GPT-3 block of 175e9 parameters over 8 tensor ranks: s·b·h·(10 + 24/8) without the scores.
        >>> saved_activation_bytes(2048, 24 * 12288, 1, 8, 10 * 12288) / (2048 * 12288)
        13.0
    """
    return tokens * (bytes_per_token / tensor_ranks + replicated) * in_flight


@term(title="working set of one block", equation="tokens × (bytes_per_token / tensor_ranks + replicated) + weight_gradient",
      source="hf-activations", exactness="derived", changes_it="micro-batch, sequence length")  # fmt: skip
def block_working_bytes(tokens: Array, bytes_per_token: Array, tensor_ranks: Array, weight_gradient: Array, replicated: Array) -> Array:
    """The block in backward: its own activations (recomputed under checkpointing) and the gradients inside it. Bytes per GPU."""
    return tokens * (bytes_per_token / tensor_ranks + replicated) + weight_gradient


@term(
    title="activations outside the blocks", equation="tokens × bytes_per_token / tensor_ranks", source="hf-activations", exactness="derived"
)
def outside_activation_bytes(tokens: Array, bytes_per_token: Array, tensor_ranks: Array) -> Array:
    """Final norm and embedding output. Bytes per GPU."""
    return tokens * bytes_per_token / tensor_ranks


@term(title="copies around the sequence exchange", equation="tokens × bytes_per_token / tensor_ranks", source="ulysses",
      exactness="derived", changes_it="sequence_parallel 1")  # fmt: skip
def exchange_bytes(tokens: Array, bytes_per_token: Array, tensor_ranks: Array) -> Array:
    """Second copies that sequence parallelism makes in one block: each all-to-all has a contiguous input beside its output.

    Equation: T · b · (3q + k + v): the attention output (kept by both the kernel and the output projection), its gradient, and the
    gradients of queries, keys and values. Bytes per GPU.

    Source: DeepSpeed-Ulysses, section 3.
    """
    return tokens * bytes_per_token / tensor_ranks


@term(title="block inputs held until backward ends", equation="2 × tokens × bytes_per_token / tensor_ranks", source="public-rows",
      exactness="fitted", changes_it="micro-batch, sequence length; training without adapters")  # fmt: skip
def held_input_bytes(tokens: Array, bytes_per_token: Array, tensor_ranks: Array) -> Array:
    """Checkpointed inputs of units whose weights are frozen, and their gradients.

    Published runs of FSDP1 with adapters hold them until backward is over, when the inputs count three times instead of once.
    fully_shard of PyTorch 2.13 lets them go (counted on two ranks), so a run of our own script stays below this figure.

    Equation: 2 · T · Σ blocks c(block). Bytes per GPU.

    Source: slopes over the micro-batch of public LoRA runs under FSDP1 with checkpointing, 768 KB a token for 32 blocks of 4,096
    where full training has 508 KB.
    """
    return 2 * tokens * bytes_per_token / tensor_ranks


def compute_of(setup: TrainingSetup, *, width: float, autocast: bool) -> Compute:
    """How blocks are computed under this recipe."""
    recipe = setup.recipe
    return Compute(
        bytes=width, autocast=autocast, kernel=recipe.attention, seq_len=recipe.seq_len, adapter=recipe.adapter, tiled_mlp=recipe.tiled_mlp,
        compiled=recipe.compile,
        numerics=setup.model.numerics,
    )  # fmt: skip


def block_bytes(setup: TrainingSetup, columns: Columns) -> BlockBytes:
    """Bytes per token by candidate: stacks are summed, autocast and plain compute counted apart and chosen by column."""
    width = float(columns.compute_bytes[0])
    variants = [_all_blocks(setup, compute_of(setup, width=width, autocast=autocast)) for autocast in (False, True)]
    picked = [np.where(columns.autocast > 0, cast, plain) for plain, cast in zip(*variants, strict=True)]
    none, selective, full, whole, working = picked
    policy = columns.checkpointing
    return BlockBytes(
        kept_all=np.choose(policy, [none, selective, full]),
        whole=whole, working=working, norm_work=np.full(len(columns), _norm_work(setup)),
    )  # fmt: skip


def _replicated(setup: TrainingSetup, columns: Columns) -> BlockBytes:
    """Of ``block_bytes``, what every tensor rank has whole; sequence parallelism leaves only what it gathers."""
    c, width = columns, float(columns.compute_bytes[0])
    kinds = (replicated_per_token, gathered_per_token)
    plain, cast = (
        [_all_blocks(setup, compute_of(setup, width=width, autocast=autocast), kind) for kind in kinds] for autocast in (False, True)
    )
    gathers = residual_ranks(c) > 1
    none, selective, full, block, working = (
        np.where(gathers, gathered, np.where(c.autocast > 0, casts, plains)) * (c.tp > 1)
        for plains, casts, gathered in zip(plain[0], cast[0], plain[1], strict=True)
    )
    return BlockBytes(
        kept_all=np.choose(c.checkpointing, [none, selective, full]), whole=block, working=working,
        norm_work=_norm_work(setup) * ((c.tp > 1) & ~gathers),
    )  # fmt: skip


def _all_blocks(setup: TrainingSetup, compute: Compute, count: Callable[[Block, Compute], Saved] = saved_per_token) -> tuple[float, ...]:
    none = selective = full = 0.0
    for stack in setup.model.stacks:
        saved, share = count(stack.block, compute), _token_share(stack, setup.recipe.seq_len)
        none += saved.none * stack.count * share
        selective += saved.selective * stack.count * share
        full += saved.full * stack.count * share
    main = count(_widest(setup, compute), compute)
    return (none, selective, full, main.none, main.working)


def _widest(setup: TrainingSetup, compute: Compute) -> Block:
    return max((s.block for s in setup.model.stacks if s.part == "main"), key=lambda b: saved_per_token(b, compute).none)


def _token_share(stack: Stack, seq_len: int) -> float:
    """Tokens this stack works on for one token of the main sequence."""
    return 1.0 if stack.tokens is None else stack.tokens / seq_len


def _norm_work(setup: TrainingSetup) -> float:
    """Temporaries of a normalisation's backward, bytes per token: 26h unfused RMS, 12h layer norm."""
    block = setup.model.main_block
    return float((26 if block.norm == "rms" else 12) * block.hidden_size)


def add_activations(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the activation lines. Under offload the kept tensors are on the host but for two blocks in transit."""
    c, per, rep = columns, block_bytes(setup, columns), _replicated(setup, columns)
    layers = np.maximum(1, share.layers)
    on_gpu = np.where(c.act_offload > 0, np.minimum(1.0, 2.0 / layers), 1.0) * share.blocks_frac
    # While one micro-batch goes backward through a stage, the others in flight there are still whole.
    one = 1 / share.in_flight
    waiting = 1 - one
    below = waiting + one * np.maximum(0, layers - 1) / layers
    second = waiting + one * np.maximum(0, layers - 2) / layers
    next_to_first = waiting + one * np.minimum(1.0, 1 / layers) * (layers > 1)
    alive = {
        FORWARD: 1.0,
        LOSS: 1.0,
        BACKWARD: below,
        BACKWARD_SECOND: second,
        BACKWARD_NEXT: next_to_first,
        BACKWARD_FIRST: waiting,
    }
    ledger.add(saved_activation_bytes, "activations", "forward", alive,
               tokens=share.tokens, bytes_per_token=(per.kept_all - rep.kept_all) * on_gpu, in_flight=share.in_flight, tensor_ranks=c.tp,
               replicated=rep.kept_all * on_gpu)  # fmt: skip
    if setup.recipe.adapter:
        _add_held_inputs(ledger, columns, share, per.kept_all * share.blocks_frac)
    exchanged = c.compute_bytes * _exchanged_per_token(setup) * (c.sp > 1)
    ledger.add(exchange_bytes, "activations", "backward", IN_BLOCKS, tokens=share.tokens, bytes_per_token=exchanged, tensor_ranks=c.tp)
    _add_working(ledger, setup, columns, share, (per, rep))
    h = setup.model.hidden_size
    # Embedding output and final norm; a masked model's head is a dense layer, an activation and a norm of its own.
    plain, cast, wide = (11.0, 15.0, 20.0) if setup.model.kind == "encoder" else (8.0, 10.0, 12.0)
    extra = np.where(c.autocast > 0, cast * h, (wide if c.compute_bytes[0] == 4 else plain) * h)
    ledger.add(
        outside_activation_bytes,
        "activations",
        "forward",
        {FORWARD: 1.0, LOSS: 1.0},
        tokens=share.tokens,
        bytes_per_token=extra,
        tensor_ranks=residual_ranks(c),
    )


def _add_working(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share, counted: tuple[BlockBytes, BlockBytes]) -> None:
    """Add the block in backward; ``counted`` is all of its bytes per token, and those every tensor rank has whole."""
    (per, rep), c = counted, columns
    block_grads = share.block_numel * c.compute_bytes * (0.0 if setup.recipe.adapter else 1.0)
    inside, inside_whole = per.whole + per.working, rep.whole + rep.working
    # Either the widest operation of the block is running, or its norm is, when the rest of the block is freed but its gradients are whole.
    by_operation = share.tokens * ((inside - inside_whole) / c.tp + inside_whole) + block_grads * _down_share(setup)
    by_norm = share.tokens * ((per.norm_work - rep.norm_work) / c.tp + rep.norm_work) + block_grads
    norm_wins = by_norm > by_operation
    ledger.add(block_working_bytes, "activations", "backward", IN_BLOCKS, tokens=share.tokens, tensor_ranks=c.tp,
               bytes_per_token=np.where(norm_wins, per.norm_work - rep.norm_work, inside - inside_whole),
               replicated=np.where(norm_wins, rep.norm_work, inside_whole),
               weight_gradient=np.where(norm_wins, block_grads, block_grads * _down_share(setup)))  # fmt: skip


def _exchanged_per_token(setup: TrainingSetup) -> float:
    """Elements of the main block's attention that exist before and after an all-to-all: 3q + k + v."""
    attention = setup.model.main_block.attention
    if attention is None:
        return 0.0
    q = attention.num_heads * attention.head_dim
    return 3.0 * q + attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)


def _add_held_inputs(ledger: Ledger, columns: Columns, share: Share, kept: Array) -> None:
    """The inputs of frozen FSDP units that backward has passed: each stays, with its gradient, until backward ends."""
    c = columns
    layers = np.maximum(1, share.layers)
    held = (c.fsdp2 > 0) & (c.param_ranks > 1) & (c.checkpointing == 2) & (c.act_offload == 0)
    passed = {
        BACKWARD_SECOND: 1 / layers,
        BACKWARD_NEXT: np.maximum(0, layers - 2) / layers,
        BACKWARD_FIRST: np.maximum(0, layers - 1) / layers,
        REDUCTION: 1.0,
    }
    ledger.add(held_input_bytes, "activations", "backward", passed, tokens=share.tokens, bytes_per_token=kept * held, tensor_ranks=c.tp)


def _down_share(setup: TrainingSetup) -> float:
    """Share of a block's weights that is its down projection, whose gradient is the first of the block to exist."""
    block = setup.model.main_block
    total = sum(w.numel for w in block.weights)
    return block.mlp.ffn_hidden_size * block.hidden_size / total if block.mlp and total else 0.0
