"""Transient buffers: gathered parameters, reduce buckets, autocast copies, and what initialisation and the step allocate."""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Tally
from app.domain.memory.moments import (
    ALWAYS,
    BACKWARD,
    BACKWARD_FIRST,
    BACKWARD_NEXT,
    BACKWARD_ON,
    BACKWARD_SECOND,
    FORWARD,
    IN_BLOCKS,
    INITIALISATION,
    LOSS,
    REDUCTION,
    STEP,
    TRAINING,
)  # fmt: skip
from app.domain.model.architecture import Role
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share


@term(title="gathered root parameters", equation="params × bytes_each", source="torch-fsdp2-measured", exactness="derived",
      changes_it="wrap the embedding and the head as units of their own")  # fmt: skip
def root_gather_bytes(params: Array, bytes_each: Array) -> Array:
    """Weights outside the blocks (embedding, final norm, head), whole from the first use to the end of backward. Bytes per GPU."""
    return params * bytes_each


@term(title="gathered block parameters", equation="block_params × bytes_each × copies", source="torch-fsdp2-measured", exactness="derived",
      changes_it="smaller units; reshard_after_forward")  # fmt: skip
def unit_gather_bytes(block_params: Array, bytes_each: Array, copies: Array) -> Array:
    """Whole weights of the unit at work and of the one gathered ahead.

    Equation: copies · P_block · bytes; two in backward (current and prefetched), all blocks where they are not resharded.
    Bytes per GPU.

    Source: live storages of fully_shard in PyTorch 2.13, six equal units.
    """
    return block_params * bytes_each * copies


@term(title="unsharded gradients", equation="params × bytes_each", source="torch-fsdp2-measured", exactness="derived")
def unsharded_gradient_bytes(params: Array, bytes_each: Array) -> Array:
    """Whole gradients that wait for their reduce-scatter: the head's until the root group is done. Bytes per GPU."""
    return params * bytes_each


@term(
    title="reduce-scatter input",
    equation="params × bytes_each",
    source="torch-fsdp2-measured",
    exactness="derived",
    changes_it="bf16 reduction",
)
def reduce_input_bytes(params: Array, bytes_each: Array) -> Array:
    """The previous unit's gradients, laid out in the reduce dtype while they travel. Bytes per GPU."""
    return params * bytes_each


@term(title="parameters kept for reuse and gathered ahead", equation="(reuse + 2 × ahead) × bytes_each", source="ds-coordinator",
      exactness="derived", changes_it="stage3_max_reuse_distance and stage3_prefetch_bucket_size")  # fmt: skip
def stage3_gather_bytes(reuse: Array, ahead: Array, bytes_each: Array) -> Array:
    """What ZeRO-3 keeps whole: weights whose next use is near, and gathers in flight, which exist twice (flat and per tensor).

    Equation: min(Ψ, D/2) · bytes + 2 · (prefetch + module) · bytes

    Args:
        reuse: elements kept across the turn from forward to backward.
        ahead: elements in flight: prefetch bucket and the largest module.
        bytes_each: bytes of one gathered element.

    Returns:
        Bytes per GPU.
    """
    total: Array = (reuse + 2 * ahead) * bytes_each
    return total


@term(title="reduce bucket", equation="elements × bytes_each × copies", source="ds-stage12", exactness="derived",
      changes_it="reduce_bucket_size; overlap_comm")  # fmt: skip
def bucket_bytes(elements: Array, bytes_each: Array, copies: Array) -> Array:
    """DeepSpeed's flat gradient buckets: one, its flattened copy, and a second one with overlap_comm at stages 1 and 2. Bytes per GPU."""
    return elements * bytes_each * copies


@term(title="autocast weight copies", equation="params × bytes_each", source="hf-activations", exactness="derived",
      changes_it="weights stored in bf16 need none")  # fmt: skip
def cast_cache_bytes(params: Array, bytes_each: Array) -> Array:
    """Low-precision copies of the dense weights that autocast keeps until backward has passed them. Bytes per GPU."""
    return params * bytes_each


@term(title="dequantised layer", equation="params × bytes_each", source="qlora", exactness="derived",
      changes_it="a base that is not quantised")  # fmt: skip
def dequantised_bytes(params: Array, bytes_each: Array) -> Array:
    """The working copy of one quantised layer: bitsandbytes unpacks it for each product, forward and backward, and drops it.

    Equation: P_layer · bytes of the compute dtype, the largest layer counting. Bytes per GPU.

    Source: Dettmers et al., QLoRA, section 3; bitsandbytes 0.50 ``MatMul4Bit``.

    Example: the feed-forward of Llama-2-70B.
        >>> dequantised_bytes(28672 * 8192, 2) / 1e6
        469.762048
    """
    return params * bytes_each


@term(title="optimizer step buffers", equation="elements × bytes_each", source="ds-stage12", exactness="derived",
      changes_it="sub_group_size at stage 3; fp32 accumulation; a fused optimizer")  # fmt: skip
def step_buffer_bytes(elements: Array, bytes_each: Array) -> Array:
    """Copies made while stepping: flattened and cast gradients under DeepSpeed, square roots under a foreach optimizer. Bytes per GPU."""
    return elements * bytes_each


@term(
    title="gradient norm in fp64", equation="8 × elements", source="ds-stage12", exactness="derived", changes_it="compute_grad_norm false"
)
def norm_bytes(elements: Array) -> Array:
    """DeepSpeed converts each gradient slice to fp64 to take its norm; the largest slice counts. Bytes per GPU."""
    return 8 * elements


@term(title="flat copies at start", equation="elements × bytes_each", source="ds-stage12", exactness="derived")
def flatten_bytes(elements: Array, bytes_each: Array) -> Array:
    """The second copy of the weights while ZeRO-1 and 2 flatten them. Bytes per GPU."""
    return elements * bytes_each


@term(title="gradients of the embedding", equation="params × bytes_each × copies", source="hf-activations", exactness="derived",
      changes_it="an untied head; sharding")  # fmt: skip
def embedding_gradient_bytes(params: Array, bytes_each: Array, copies: Array) -> Array:
    """A tied table has two gradients, from the head and from the lookup, and autograd adds them into a third. Bytes per GPU.

    Equation: copies · V·h · bytes, beside the one that is kept.
    """
    return params * bytes_each * copies


@term(title="gradient of the embedding's output", equation="tokens × hidden × bytes_each", source="hf-activations", exactness="derived")
def input_gradient_bytes(tokens: Array, hidden: int, bytes_each: Array) -> Array:
    """What arrives at the embedding when all other gradients exist. Bytes per GPU."""
    return tokens * hidden * bytes_each


def add_buffers(ledger: Tally, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> None:
    """Add the transient lines of every framework that is there; each is zero for the others."""
    tied = 1.0 if setup.model.tied_embeddings and setup.model.vocab_size and not numbers.adapter else 0.0
    if columns.copies_units.any():
        _add_fsdp2(ledger, numbers, columns, share, tied=tied)
    _add_embedding(ledger, setup, columns, share, tied=tied)
    if columns.zero3.any():
        _add_stage3(ledger, columns, share)
    if columns.deepspeed.any():
        _add_buckets(ledger, columns, share)
    if columns.autocast.any():
        _add_casts(ledger, columns, share)
    _add_dequantised(ledger, setup, columns)
    _add_step(ledger, setup, columns, share)


def _add_embedding(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share, *, tied: float) -> None:
    """The last operation of backward where parameters are whole: nothing but gradients is left, and the embedding's is made."""
    c = columns
    whole = (c.param_ranks == 1) & (c.pp == 1) & ~c.copies_units
    width = np.where(c.ddp > 0, c.param_bytes, c.compute_bytes)
    added = 2.0 + (c.grad_accum > 1)
    ledger.add(embedding_gradient_bytes, "gradients", "backward", {REDUCTION: 1.0},
               params=np.minimum(share.head, share.trainable) * whole * tied, bytes_each=width, copies=added)  # fmt: skip
    trained = 0.0 if setup.recipe.adapter or setup.recipe.trainable_params or tied else 1.0
    residual = np.where(c.autocast > 0, 4.0, c.compute_bytes)
    ledger.add(input_gradient_bytes, "gradients", "backward", {REDUCTION: 1.0},
               tokens=share.tokens * whole * trained, hidden=setup.model.hidden_size, bytes_each=residual)  # fmt: skip


def _add_fsdp2(ledger: Tally, numbers: Numbers, columns: Columns, share: Share, *, tied: float) -> None:
    c, sharded = columns, columns.copies_units
    alone = (c.param_ranks == 1) & (c.offload_parameters == 0)
    width = np.where(numbers.frozen > 0, c.frozen_bytes, c.compute_bytes)
    resharding = sharded & (c.keeps_gathered == 0)
    trained = 0.0 if numbers.adapter else 1.0
    head = np.minimum(share.head, share.outside) * sharded * trained
    # The root's gradients are reduced last; before, a tied table's two are added into a third while the root is still whole.
    summing = (tied > 0) & (3 * head * c.compute_bytes + share.block * c.reduce_bytes > share.outside * c.reduce_bytes)
    turned = dict.fromkeys((FORWARD, LOSS, *IN_BLOCKS), 1.0) | {REDUCTION: summing | alone}
    ledger.add(root_gather_bytes, "parameters", "forward", turned, params=share.outside * sharded, bytes_each=c.compute_bytes)
    ahead = np.where(alone, 0.0, 0.5)
    ledger.add(
        unit_gather_bytes,
        "parameters",
        "forward",
        {FORWARD: ahead, LOSS: ahead, BACKWARD: 1.0, BACKWARD_SECOND: 1.0, BACKWARD_NEXT: 1.0, BACKWARD_FIRST: 0.5 + 0.5 * alone},
        block_params=share.block * resharding,
        bytes_each=width,
        copies=np.where(alone, 1.0, 2.0),
    )
    last = 1 / np.maximum(1, share.layers)
    # The last gather's flat output is freed when forward returns, beside the blocks that stay whole.
    kept = {FORWARD: 1.0 + last, LOSS: 1.0, BACKWARD: 1.0, BACKWARD_SECOND: 1 - last, BACKWARD_NEXT: 2 * last, BACKWARD_FIRST: last}
    ledger.add(unit_gather_bytes, "parameters", "forward", kept,
               block_params=share.block * (sharded & (c.keeps_gathered > 0)), bytes_each=width, copies=share.layers)  # fmt: skip
    ledger.add(unsharded_gradient_bytes, "gradients", "backward", IN_BLOCKS, params=head, bytes_each=c.compute_bytes)
    ledger.add(unsharded_gradient_bytes, "gradients", "backward", {REDUCTION: 1.0},
               params=np.where(summing, 2 * head, 0.0) + share.outside * sharded * trained, bytes_each=c.compute_bytes)  # fmt: skip
    ledger.add(reduce_input_bytes, "buffers", "backward", {BACKWARD_SECOND: 1.0, BACKWARD_NEXT: 1.0, BACKWARD_FIRST: 1.0},
               params=share.block * sharded * trained, bytes_each=c.reduce_bytes)  # fmt: skip
    ledger.add(reduce_input_bytes, "buffers", "backward", {REDUCTION: 1.0},
               params=np.where(summing, share.block, share.outside) * sharded * trained, bytes_each=c.reduce_bytes)  # fmt: skip


def _add_stage3(ledger: Tally, columns: Columns, share: Share) -> None:
    c = columns
    # A single rank has nothing to gather unless its parameters are elsewhere.
    stage3 = c.zero3 & ((c.param_ranks > 1) | (c.offload_parameters > 0))
    whole = share.inside + share.outside
    reuse = np.minimum(whole, c.reuse / 2) * stage3
    module = np.minimum(share.largest, share.block)
    ahead = (c.prefetch + module) * stage3
    turned = {FORWARD: 1.0, LOSS: 1.0, BACKWARD: 1.0, BACKWARD_SECOND: 1.0, BACKWARD_NEXT: 1.0, BACKWARD_FIRST: 0.5}
    ledger.add(stage3_gather_bytes, "parameters", "forward", turned, reuse=reuse, ahead=ahead, bytes_each=c.compute_bytes)
    secondary = whole * ((c.hpz > 1) & stage3) / np.maximum(1, c.hpz)
    ledger.add(parameter_copy_bytes, "parameters", "forward", TRAINING, params=secondary, bytes_each=c.compute_bytes)
    ledger.add(unsharded_gradient_bytes, "gradients", "backward", IN_BLOCKS, params=module * stage3, bytes_each=c.compute_bytes)


@term(
    title="secondary parameter copy (hpZ)",
    equation="params × bytes_each",
    source="zeropp",
    exactness="derived",
    changes_it="hpz group size",
)
def parameter_copy_bytes(params: Array, bytes_each: Array) -> Array:
    """ZeRO++ keeps a second low-precision shard inside the node so that backward gathers stay there. Bytes per GPU."""
    return params * bytes_each


def _add_buckets(ledger: Tally, columns: Columns, share: Share) -> None:
    c = columns
    filled = np.minimum(c.bucket, share.trainable)
    stage3, early = c.zero3, c.zero12
    # Stage 3 keeps its bucket for the whole run and copies what is in it to send; 1 and 2 make theirs in backward. A bucket has its
    # size however little is trained.
    ledger.add(bucket_bytes, "buffers", "always", ALWAYS, elements=c.bucket * stage3, bytes_each=c.reduce_bytes, copies=1.0)
    ledger.add(bucket_bytes, "buffers", "backward", BACKWARD_ON, elements=filled * stage3, bytes_each=c.reduce_bytes, copies=1.0)
    ledger.add(bucket_bytes, "buffers", "backward", BACKWARD_ON, elements=c.bucket * early, bytes_each=c.compute_bytes,
               copies=1.0 + (c.overlap_comm > 0))  # fmt: skip
    ledger.add(bucket_bytes, "buffers", "backward", BACKWARD_ON, elements=filled * early, bytes_each=c.compute_bytes, copies=1.0)


def _add_casts(ledger: Tally, columns: Columns, share: Share) -> None:
    c = columns
    last = 1 / np.maximum(1, share.layers)
    alive = {FORWARD: 1.0, LOSS: 1.0, BACKWARD: 1.0, BACKWARD_SECOND: 1 - last, BACKWARD_NEXT: 2 * last, BACKWARD_FIRST: last}
    casts = c.autocast > 0
    # Under checkpointing the cast of a block is dropped with the block's own forward; only the head's survives, until the loss.
    ledger.add(
        cast_cache_bytes, "buffers", "forward", alive, params=share.inside * casts * (c.checkpointing == 0), bytes_each=c.compute_bytes
    )
    ledger.add(cast_cache_bytes, "buffers", "forward", {FORWARD: 1.0, LOSS: 1.0}, params=share.head * casts, bytes_each=c.compute_bytes)


def _add_dequantised(ledger: Tally, setup: TrainingSetup, columns: Columns) -> None:
    """One layer's weights in the compute dtype, while a 4-bit base multiplies with them; 8-bit layers multiply as they are."""
    adapter = setup.recipe.adapter
    if not (adapter and adapter.kind == "qlora" and adapter.base_bits == 4):
        return
    layers = [w.numel // w.copies for s in setup.model.stacks for w in s.block.weights if w.role is Role.LINEAR and len(w.shape) >= 2]
    largest = max(layers, default=0) / columns.tp
    ledger.add(dequantised_bytes, "buffers", "backward", IN_BLOCKS, params=largest, bytes_each=columns.compute_bytes)


def _add_step(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    c = columns
    on_gpu, some_on_gpu = (c.offload_optimizer == 0) * 1.0, c.away < 1
    shard = share.trainable / c.state_ranks
    low = (c.master_bytes > 0) * 1.0
    # Gradients are averaged and flattened in their own dtype, then cast to fp32; fp32 accumulation needs no cast.
    ds12, stage3 = c.zero12, c.zero3
    stage0 = (c.deepspeed > 0) & ~ds12 & ~stage3
    tile = np.minimum(c.sub_group, shard)
    each = np.where(c.grad_bytes < 4, c.grad_bytes * 2 + 4, 4.0)
    elements = (shard * ds12 * on_gpu + tile * stage3 * some_on_gpu) * low
    ledger.add(
        step_buffer_bytes,
        "buffers",
        "step",
        {STEP: 1.0},
        elements=elements,
        bytes_each=np.where(stage3, np.where(c.grad_bytes < 4, 4 + c.grad_bytes, 4.0), each),
    )
    ledger.add(step_buffer_bytes, "buffers", "step", {STEP: 1.0}, elements=share.trainable * stage0 * low, bytes_each=8.0)
    native = (c.deepspeed == 0) * on_gpu * (0.0 if setup.recipe.optimizer_in_backward else 1.0)
    implementation = setup.recipe.optimizer_implementation or "fused"
    moved = {"foreach": shard, "loop": 2 * share.largest / c.state_ranks}.get(implementation, 0.0 * shard)
    ledger.add(step_buffer_bytes, "buffers", "step", {STEP: 1.0}, elements=moved * native, bytes_each=c.param_bytes)
    slices = np.where(stage3, share.largest_trained / c.param_ranks, np.minimum(share.largest_trained, shard)) * (ds12 | stage3) * on_gpu
    ledger.add(norm_bytes, "buffers", "step", {STEP: 1.0}, elements=np.minimum(slices, shard))
    ledger.add(
        flatten_bytes, "buffers", "always", {INITIALISATION: 1.0}, elements=share.trainable * ds12 * on_gpu, bytes_each=c.compute_bytes
    )
