"""Host memory of one node: offloaded states, what pinning adds, staging, activation offload. Loading is in ``loading``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Tally
from app.domain.memory.activations import block_bytes
from app.domain.memory.loading import INITIALISE, LOAD, TRAIN, add_loading
from app.domain.memory.pinned import rounded_tensors_bytes, rounding_bytes
from app.domain.recipe.optimizer import OPTIMIZERS
from app.domain.recipe.recipe import CHECKPOINTING_NAMES
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share

_TRAINING = {TRAIN: 1.0}
_AFTER_LOAD = {INITIALISE: 1.0, TRAIN: 1.0}
_FROM_LOAD_ON = {LOAD: 1.0} | _AFTER_LOAD
ADAM_SWAP_BUFFERS, LEAST_PARAM_BUFFERS, MOST_PARAM_BUFFERS = 4, 5, 64
"""Swap buffers the emitted file asks for under NVMe offload: of optimizer tiles, and bounds for those of parameters."""


@term(
    title="optimizer states on the host",
    equation="params × bytes_each / ranks × ranks_per_node",
    source="ds-stage12",
    exactness="derived",
    changes_it="more nodes; optimizer offload off",
)
def host_state_bytes(params: Array, bytes_each: Array, ranks: Array, ranks_per_node: Array) -> Array:
    """Offloaded master, fp32 gradient, staging copy and moments of the node's ranks.

    Equation: 18·Ψ·L/N under DeepSpeed (4 master + 4 gradient + 2 staging or flat gradients + 8 moments), 20 with accumulation
    at stages 1 and 2; 12 under FSDP2 (4 gradient + 8 moments).

    Args:
        params: trained parameters.
        bytes_each: bytes a trained parameter takes on the host.
        ranks: ranks that hold one copy together.
        ranks_per_node: ranks of the node.

    Returns:
        Bytes per node.

    Source: DeepSpeed stage_1_and_2.py and stage3.py, measured per parameter.

    Example: 8.03e9 parameters on one node of 8.
        >>> host_state_bytes(8.03e9, 18, 8, 8) / 1e9
        144.54
    """
    return params * bytes_each / ranks * ranks_per_node


@term(title="parameters on the host", equation="params × bytes_each / ranks × ranks_per_node", source="ds-stage3", exactness="derived")
def host_parameter_bytes(params: Array, bytes_each: Array, ranks: Array, ranks_per_node: Array) -> Array:
    """Offloaded weights, pinned. Bytes per node."""
    return params * bytes_each / ranks * ranks_per_node


@term(
    title="pinned blocks the allocator keeps",
    equation="params × bytes_each / ranks × ranks_per_node",
    source="torch-pinned",
    exactness="derived",
    changes_it="offload_param off, or its pin_memory false",
)
def pinned_cache_bytes(params: Array, bytes_each: Array, ranks: Array, ranks_per_node: Array) -> Array:
    """Pinned partitions of zero.Init that stage 3 replaces by one flat buffer: torch never gives pinned blocks back.

    Equation: 2·Ψ·L/N beside the 2·Ψ·L/N of the buffer that is used.

    Returns:
        Bytes per node.

    Source: DeepSpeed partition_parameters.py and stage3.py ``_create_param_groups_fp16_flat_cpu_memory``; torch
    CachingHostAllocator ``maybe_cache_block``.

    Example: 32e9 parameters on one rank.
        >>> pinned_cache_bytes(32e9, 2, 1, 1) / 1e9
        64.0
    """
    return params * bytes_each / ranks * ranks_per_node


@term(title="pinned blocks rounded up", equation="bytes_per_rank × ranks_per_node", source="torch-pinned", exactness="derived",
      changes_it="pinned_max_cached_size_mb in launch.sh")  # fmt: skip
def pinned_rounding_node_bytes(bytes_per_rank: Array, ranks_per_node: Array) -> Array:
    """What rounding to powers of two adds to pinned blocks up to 64 MiB, one a tensor; larger ones keep their size. Bytes per node."""
    return bytes_per_rank * ranks_per_node


@term(title="averaged weights on the host", equation="params × bytes_each / ranks × ranks_per_node", source="product", exactness="derived")
def host_ema_bytes(params: Array, bytes_each: Array, ranks: Array, ranks_per_node: Array) -> Array:
    """The averaged copy of offloaded weights, sharded as they are. Bytes per node."""
    return params * bytes_each / ranks * ranks_per_node


@term(title="transfer buffers", equation="elements × bytes_each × ranks_per_node", source="ds-stage12", exactness="derived")
def host_buffer_bytes(elements: Array, bytes_each: Array, ranks_per_node: Array) -> Array:
    """A pinned buffer of the largest parameter in each rank, through which stages 1 and 2 move gradients. Bytes per node."""
    return elements * bytes_each * ranks_per_node


@term(
    title="NVMe swap buffers",
    equation="buffers × elements × bytes_each × ranks_per_node",
    source="ds-swap",
    exactness="derived",
    changes_it="sub_group_size for optimizer tiles; buffer_count and buffer_size for parameters",
)
def swap_buffer_bytes(buffers: Array, elements: Array, bytes_each: Array, ranks_per_node: Array) -> Array:
    """Buffers that NVMe offload reads into and writes from, locked in every rank.

    Equation: 4·S·4·L for Adam (parameter, gradient, two moments of one tile of S elements); count · largest shard · 2 · L for parameters.

    Returns:
        Bytes per node.

    Source: DeepSpeed runtime/swap_tensor.

    Example: DeepSpeed's default tile of 1e9 elements on 8 ranks.
        >>> swap_buffer_bytes(4, 1e9, 4, 8) / 1e9
        128.0
    """
    return buffers * elements * bytes_each * ranks_per_node


@term(title="offloaded activations", equation="tokens × bytes_per_token × in_flight / tensor_ranks × ranks_per_node", source="ds-engine",
      exactness="derived", changes_it="sequence length, micro-batch")  # fmt: skip
def host_activation_bytes(tokens: Array, bytes_per_token: Array, in_flight: Array, tensor_ranks: Array, ranks_per_node: Array) -> Array:
    """Checkpointed block inputs kept in pinned host memory. Bytes per node."""
    return tokens * bytes_per_token * in_flight / tensor_ranks * ranks_per_node


def add_host(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the host lines of one node."""
    add_held(ledger, setup, columns, share)
    add_loading(ledger, setup, columns, share, ranks_per_node(setup, columns))


def add_held(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add what one node holds while it trains, without loading."""
    per_node, c = ranks_per_node(setup, columns), columns
    if c.offload_optimizer.any() or OPTIMIZERS[setup.recipe.optimizer].paged:
        _add_states(ledger, setup, columns, share, per_node)
    if (c.offload_parameters == 1).any():
        _add_parameters(ledger, setup, columns, share, per_node)
    if c.offload_optimizer.any() or c.offload_parameters.any():
        _add_buffers(ledger, setup, columns, share, per_node)
    if c.act_offload.any():
        _add_activations(ledger, setup, columns, share, per_node)


def ranks_per_node(setup: TrainingSetup, columns: Columns) -> Array:
    """Ranks that share one node's memory."""
    ranks: Array = np.minimum(columns.world_size, setup.pool.node.gpus_per_node) * 1.0
    return ranks


def host_peak(ledger: Tally, moments: Sequence[str] = (LOAD, INITIALISE, TRAIN)) -> Array:
    """Bytes per node at the worst of loading, initialisation and training."""
    peak: Array = reduce(np.maximum, [ledger.at(moment) for moment in moments])
    return peak


def _add_states(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share, per_node: Array) -> None:
    c = columns
    offloaded = share.trainable * (c.offload_optimizer > 0)
    # Stages 1 and 2 stage low-precision weights, and keep each element again while they accumulate; stage 3 sums in a flat buffer.
    staging = np.where(c.zero3, c.grad_bytes, c.compute_bytes * (1.0 + (c.grad_accum > 1)))
    # Without a fp32 master the optimizer keeps a copy in the weights' own dtype, and gradients beside it.
    master = np.where(c.master_bytes > 0, c.master_bytes, c.duplicate_bytes)
    moments = np.where(c.offload_optimizer == 1, (2 * master + c.state_bytes) * c.away, 0.0)
    each = np.where(c.deepspeed > 0, moments + staging, c.grad_bytes + c.state_bytes)
    ledger.add(
        host_state_bytes,
        "optimizer_states",
        "always",
        _TRAINING,
        params=offloaded,
        bytes_each=each,
        ranks=c.state_ranks,
        ranks_per_node=per_node,
    )
    if OPTIMIZERS[setup.recipe.optimizer].paged:
        paged = share.trainable * (c.offload_optimizer == 0)
        ledger.add(host_state_bytes, "optimizer_states", "always", _TRAINING, params=paged, bytes_each=c.state_bytes,
                   ranks=c.state_ranks, ranks_per_node=per_node)  # fmt: skip
    if setup.recipe.ema:
        ledger.add(host_ema_bytes, "optimizer_states", "always", _TRAINING, params=offloaded, bytes_each=c.param_bytes,
                   ranks=c.state_ranks, ranks_per_node=per_node)  # fmt: skip


def _add_parameters(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share, per_node: Array) -> None:
    c, on_host = columns, columns.offload_parameters == 1
    stored = (share.trainable * c.param_bytes + share.frozen * c.frozen_bytes) * on_host
    ledger.add(host_parameter_bytes, "parameters", "always", _FROM_LOAD_ON, params=stored, bytes_each=1.0, ranks=c.param_ranks,
               ranks_per_node=per_node)  # fmt: skip
    ledger.add(pinned_cache_bytes, "buffers", "always", _AFTER_LOAD, params=share.trainable * on_host * c.zero3,
               bytes_each=c.param_bytes, ranks=c.param_ranks, ranks_per_node=per_node)  # fmt: skip
    # zero.Init pins one partition a tensor; FSDP2 pins a shard a tensor, and each gradient again.
    trains_base = (share.frozen == 0) * 1.0
    copies = on_host * np.where(c.zero3, 1.0, 1.0 + trains_base)
    width = np.where(share.frozen > 0, c.frozen_bytes, c.param_bytes)
    extra = rounded_tensors_bytes(setup, np.where(on_host, c.param_ranks, 0), width)
    ledger.add(pinned_rounding_node_bytes, "buffers", "always", _TRAINING, bytes_per_rank=extra * copies, ranks_per_node=per_node)


def _add_buffers(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share, per_node: Array) -> None:
    c = columns
    staged = share.largest * c.zero12 * (c.offload_optimizer > 0)
    ledger.add(host_buffer_bytes, "buffers", "always", _TRAINING, elements=staged, bytes_each=c.compute_bytes, ranks_per_node=per_node)
    if not ((c.offload_optimizer == 2) | (c.offload_parameters == 2)).any():
        return
    tile = np.minimum(c.sub_group + share.largest / c.param_ranks, share.trainable / c.state_ranks) * (c.offload_optimizer == 2)
    width = np.where(c.master_bytes > 0, c.master_bytes, c.duplicate_bytes)
    ledger.add(swap_buffer_bytes, "buffers", "always", _TRAINING, buffers=ADAM_SWAP_BUFFERS, elements=tile, bytes_each=width,
               ranks_per_node=per_node)  # fmt: skip
    shard = np.ceil(share.largest / c.param_ranks) * (c.offload_parameters == 2)
    ledger.add(swap_buffer_bytes, "buffers", "always", _FROM_LOAD_ON, buffers=_param_buffers(setup, columns), elements=shard,
               bytes_each=c.compute_bytes, ranks_per_node=per_node)  # fmt: skip


def _param_buffers(setup: TrainingSetup, columns: Columns) -> Array:
    """Buffers for the tensors of one block and those the prefetch bucket reaches into, as the emitted file counts them."""
    weights = [(w.numel // w.copies, w.copies) for w in setup.model.main_block.weights]
    large = [np.where(size > columns.persistence, copies, 0) for size, copies in weights]
    numel = sum(np.where(size > columns.persistence, size * copies, 0) for size, copies in weights)
    ahead = np.ceil(columns.prefetch / np.maximum(1, numel))
    buffers: Array = np.clip(np.sum(large, axis=0) * (1 + ahead) + 2, LEAST_PARAM_BUFFERS, MOST_PARAM_BUFFERS)
    return buffers


def _add_activations(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share, per_node: Array) -> None:
    c = columns
    kept = block_bytes(setup, c).kept_all / c.pp * (c.act_offload > 0)
    ledger.add(
        host_activation_bytes,
        "activations",
        "forward",
        _TRAINING,
        tokens=share.tokens,
        bytes_per_token=kept,
        in_flight=share.in_flight,
        tensor_ranks=c.tp,
        ranks_per_node=per_node,
    )
    # Under full checkpointing each block keeps one tensor, its input: one pinned block each.
    full = c.checkpointing == CHECKPOINTING_NAMES.index("full")
    blocks = share.layers * share.in_flight * full
    extra = rounding_bytes(share.tokens * kept / np.maximum(1, share.layers) / c.tp) * blocks
    ledger.add(pinned_rounding_node_bytes, "buffers", "forward", _TRAINING, bytes_per_rank=extra, ranks_per_node=per_node)
