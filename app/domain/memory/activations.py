"""Activation memory: what forward keeps for backward, and what the backward of one block needs on top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Tally
from app.domain.memory.block_backward import ABSENT, norm_work, operations
from app.domain.memory.moments import BACKWARD, BACKWARD_FIRST, BACKWARD_NEXT, BACKWARD_SECOND, FORWARD, IN_BLOCKS, LOSS, REDUCTION
from app.domain.memory.saved import Compute, first_block_unsaved, saved_per_token
from app.domain.memory.tensor import Whole, gathered_per_token, replicated_per_token, residual_ranks
from app.domain.model.architecture import Block, Stack
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """Columns of bytes per token: all blocks as kept, one whole block, and one block's kept input under checkpointing."""

    kept_all: Array
    whole: Array
    boundary: Array


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


@term(title="attention masks", equation="tokens × seq_len × bytes_each × masks", source="hf-activations", exactness="derived",
      changes_it="a flash kernel, which needs no mask")  # fmt: skip
def mask_bytes(tokens: Array, seq_len: int, bytes_each: Array, masks: int) -> Array:
    """Attention masks, one element for each pair of tokens, which checkpointing holds as an input of every block.

    One for each kind of layer: full (eager only), and each width of sliding window. Bytes per GPU.
    """
    return tokens * seq_len * bytes_each * masks


@term(title="final norm in backward", equation="tokens × bytes_per_token / tensor_ranks + head_gradient", source="hf-activations",
      exactness="derived", changes_it="micro-batch, sequence length")  # fmt: skip
def final_norm_bytes(tokens: Array, bytes_per_token: Array, tensor_ranks: Array, head_gradient: Array) -> Array:
    """What follows a loss that never held its logits: the final norm's temporaries beside the head's gradient. Bytes per GPU.

    Equation: 24h·T + b·V·h
    """
    return tokens * bytes_per_token / tensor_ranks + head_gradient


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
    width = float(columns.compute_bytes.flat[0])
    kept, whole = setup.once(("blocks", width), lambda: _block_table(setup, width))
    policy, cast = columns.checkpointing, (columns.autocast > 0) * 1
    # A norm that casts its input to fp32 keeps the copy; others keep the input itself, which is what the checkpoint holds. Kernels
    # that fuse the loss come with norms of the second kind (Liger), adapters mostly run on them, and a compiler makes them.
    plain = not (setup.recipe.fused_loss or setup.recipe.adapter or setup.recipe.compile)
    boundary: Array = np.zeros(())
    if plain and setup.model.main_block.norm == "rms" and width < 4:
        apart = (policy > 0) & (cast == 0) & (columns.act_offload == 0)
        boundary = kept[cast, 2] * apart / setup.model.num_layers
    return BlockBytes(kept_all=kept[cast, policy], whole=whole[cast], boundary=boundary)


def _block_table(setup: TrainingSetup, width: float) -> tuple[Array, Array]:
    """Bytes per token without and with autocast: kept by policy, and of one whole block."""
    rows = np.array([_all_blocks(setup, compute_of(setup, width=width, autocast=autocast)) for autocast in (False, True)])
    return rows[:, :3], rows[:, 3]


def _all_blocks(setup: TrainingSetup, compute: Compute) -> tuple[float, ...]:
    none = selective = full = 0.0
    for stack in setup.model.stacks:
        saved, share = saved_per_token(stack.block, compute), _token_share(stack, setup.recipe.seq_len)
        none += saved.none * stack.count * share
        selective += saved.selective * stack.count * share
        full += saved.full * stack.count * share
    main = _widest(setup, compute)
    return (none - first_block_unsaved(main, compute), selective, full, saved_per_token(main, compute).none)


def _whole(setup: TrainingSetup, columns: Columns) -> list[Array]:
    """Bytes per token that every tensor rank has whole: kept by all blocks, then at each of a block's ``operations``.

    Sequence parallelism leaves only what it gathers.
    """
    c, width = columns, float(columns.compute_bytes.flat[0])
    if not (c.tp > 1).any():
        return [np.zeros(())] * _WHOLE
    how = np.where(residual_ranks(c) > 1, 2, c.autocast > 0)
    table: Array = setup.once(("whole", width), lambda: _whole_table(setup, width))
    split = c.tp > 1
    return [table[how, c.checkpointing] * split, *(table[how, place] * split for place in range(3, table.shape[1]))]


_WHOLE = 6
"""What ``_whole`` tells apart: what is kept, and five operations."""


def _whole_table(setup: TrainingSetup, width: float) -> Array:
    """Bytes per token that every tensor rank has whole: plain, under autocast, gathered; kept by policy and at work."""
    plain, cast = (compute_of(setup, width=width, autocast=autocast) for autocast in (False, True))
    counts = ((plain, replicated_per_token), (cast, replicated_per_token), (plain, gathered_per_token))
    return np.array([_whole_blocks(setup, compute, count) for compute, count in counts])


def _whole_blocks(setup: TrainingSetup, compute: Compute, count: Callable[[Block, Compute], Whole]) -> tuple[float, ...]:
    kept = np.zeros(3)
    for stack in setup.model.stacks:
        whole = count(stack.block, compute)
        kept += np.array([whole.none, whole.selective, whole.full]) * stack.count * _token_share(stack, setup.recipe.seq_len)
    return (*map(float, kept), *count(_widest(setup, compute), compute).operations)


def _widest(setup: TrainingSetup, compute: Compute) -> Block:
    return max((s.block for s in setup.model.stacks if s.part == "main"), key=lambda b: saved_per_token(b, compute).none)


def _token_share(stack: Stack, seq_len: int) -> float:
    """Tokens this stack works on for one token of the main sequence."""
    return 1.0 if stack.tokens is None else stack.tokens / seq_len


def add_activations(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the activation lines. Under offload the kept tensors are on the host but for two blocks in transit."""
    c, per = columns, block_bytes(setup, columns)
    whole, *whole_at_work = _whole(setup, c)
    layers = np.maximum(1, share.layers)
    kept = per.kept_all * share.blocks_frac
    on_gpu = np.where(c.act_offload > 0, np.minimum(1.0, 2.0 / layers), 1.0)
    # A checkpointed block's input stays until its own backward is through.
    own = per.boundary / np.maximum(1.0, kept) / share.in_flight
    # While one micro-batch goes backward through a stage, the others in flight there are still whole.
    one = 1 / share.in_flight
    waiting = 1 - one
    alive = {
        FORWARD: 1.0,
        LOSS: 1.0,
        BACKWARD: waiting + one * np.maximum(0, layers - 1) / layers + own,
        BACKWARD_SECOND: waiting + one * np.maximum(0, layers - 2) / layers + own,
        BACKWARD_NEXT: waiting + one * np.minimum(1.0, 1 / layers) * (layers > 1) + own,
        BACKWARD_FIRST: waiting + own,
    }
    replicated = whole * share.blocks_frac
    ledger.add(saved_activation_bytes, "activations", "forward", alive, tokens=share.tokens, bytes_per_token=(kept - replicated) * on_gpu,
               in_flight=share.in_flight, tensor_ranks=c.tp, replicated=replicated * on_gpu)  # fmt: skip
    if setup.recipe.adapter:
        _add_held_inputs(ledger, columns, share, kept)
    exchanged = c.compute_bytes * _exchanged_per_token(setup) * (c.sp > 1)
    ledger.add(exchange_bytes, "activations", "backward", IN_BLOCKS, tokens=share.tokens, bytes_per_token=exchanged, tensor_ranks=c.tp)
    work, replicated, gradient = _largest_operation(setup, c, share, whole_at_work)
    ledger.add(block_working_bytes, "activations", "backward", IN_BLOCKS, tokens=share.tokens, bytes_per_token=work - replicated,
               tensor_ranks=c.tp, weight_gradient=gradient, replicated=replicated)  # fmt: skip
    _add_outside(ledger, setup, c, share)
    masks = _masks(setup)
    if masks:
        # Eager attention adds its mask to the scores; sdpa takes one of booleans.
        each = np.where(setup.recipe.attention == "eager", np.where(c.autocast > 0, 4.0, c.compute_bytes), 1.0)
        ledger.add(mask_bytes, "activations", "forward", IN_BLOCKS | {FORWARD: 1.0, LOSS: 1.0}, tokens=share.tokens * (c.checkpointing > 0),
                   seq_len=setup.recipe.seq_len, bytes_each=each, masks=masks)  # fmt: skip


def _exchanged_per_token(setup: TrainingSetup) -> float:
    """Elements of the main block's attention that exist before and after an all-to-all: 3q + k + v."""
    attention = setup.model.main_block.attention
    if attention is None:
        return 0.0
    q = attention.num_heads * attention.head_dim
    return 3.0 * q + attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)


def _add_held_inputs(ledger: Tally, columns: Columns, share: Share, kept: Array) -> None:
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


def _largest_operation(setup: TrainingSetup, columns: Columns, share: Share, whole: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Bytes per token, those of them every tensor rank has whole, and bytes of weight gradients at the operation of a block's
    backward that holds most, by candidate."""
    c, width = columns, float(columns.compute_bytes.flat[0])
    block_grads = share.block_numel * c.compute_bytes * (0.0 if setup.recipe.adapter else 1.0)
    computes = (compute_of(setup, width=width, autocast=autocast) for autocast in (False, True))
    variants = setup.once(("operations", width), lambda: [operations(_widest(setup, compute), compute) for compute in computes])
    # ZeRO moves each gradient into its bucket as it is made: one matrix is beside it. Others keep the block's to its end.
    buckets, one = c.zero12 | c.zero3, variants[0][0].weights_frac
    best: tuple[Array, Array, Array] | None = None
    most: Array = np.zeros(())
    for plain, cast, replicated in zip(*variants, whole, strict=True):
        if plain is ABSENT:
            continue
        work = np.where(c.autocast > 0, cast.bytes_per_token, plain.bytes_per_token)
        at_work = np.minimum(replicated, work)
        grads = np.where(buckets, min(plain.weights_frac, one), plain.weights_frac) * block_grads
        total = share.tokens * ((work - at_work) / c.tp + at_work) + grads
        larger = total > most
        if best is None or larger.all():
            best, most = (work, at_work, grads), total
        elif larger.any():
            best = np.where(larger, work, best[0]), np.where(larger, at_work, best[1]), np.where(larger, grads, best[2])
            most = np.where(larger, total, most)
    return best or (np.zeros(()), np.zeros(()), np.zeros(()))


def _add_outside(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Embedding output, final norm and head input; where no logits are held, the final norm's backward follows the loss."""
    c, model = columns, setup.model
    plain, cast, wide = outside_per_token(setup)
    extra = np.where(c.autocast > 0, cast, wide if c.compute_bytes.flat[0] == 4 else plain)
    fused = setup.recipe.fused_loss and model.vocab_size > 0
    ledger.add(outside_activation_bytes, "activations", "forward", {FORWARD: 1.0} if fused else {FORWARD: 1.0, LOSS: 1.0},
               tokens=share.tokens, bytes_per_token=extra, tensor_ranks=residual_ranks(c))  # fmt: skip
    if fused:
        trained = 0.0 if setup.recipe.adapter else 1.0
        ledger.add(final_norm_bytes, "activations", "backward", {LOSS: 1.0}, tokens=share.tokens,
                   bytes_per_token=norm_work(model.main_block) - 2.0 * model.hidden_size,
                   tensor_ranks=residual_ranks(c),
                   head_gradient=share.head * c.compute_bytes * trained)  # fmt: skip


def outside_per_token(setup: TrainingSetup) -> tuple[float, float, float]:
    """Bytes per token kept outside the blocks in 16 bits, under autocast and in fp32.

    A final norm and the head's input, 8h for RMS; a frozen one keeps its input only. Dropout after the embedding keeps a mask.
    A masked model's head is a dense layer, an activation and a norm of its own.
    """
    model, block, adapter = setup.model, setup.model.main_block, setup.recipe.adapter
    # Preparing a quantised base makes its norms fp32, whose outputs are as wide again as what freezing saves.
    frozen = adapter is not None and adapter.kind == "lora"
    h = model.hidden_size
    if model.kind == "encoder":
        return 11.0 * h, 15.0 * h, 20.0 * h
    if block.norm == "layer":
        mask = 1.0 if block.dropout and not adapter else 0.0
        plain, cast, wide = (2.0, 4.0, 4.0) if frozen else (4.0, 6.0, 8.0)
        return (plain + mask) * h, (cast + mask) * h, (wide + mask) * h
    if frozen:
        return 4.0 * h, 4.0 * h, 4.0 * h
    return (10.0 if model.numerics.wide_norms else 8.0) * h, 10.0 * h, 12.0 * h


def _masks(setup: TrainingSetup) -> int:
    """Masks the model makes: eager attention one for each width its causal layers see, sdpa only where a window is shorter than s."""
    attention = [s.block.attention for s in setup.model.stacks if s.part == "main" and s.block.attention is not None]
    widths = {a.window for a in attention if a.causal and a.kind == "grouped"}
    if setup.recipe.attention == "sdpa":
        return sum(w is not None and w <= setup.recipe.seq_len for w in widths)
    return len(widths) if setup.recipe.attention == "eager" else 0
