"""Host memory of one node: offloaded states, pinned staging, activation offload and the load peak."""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.memory.activations import block_bytes
from app.domain.recipe.optimizer import OPTIMIZERS
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share

LOAD, TRAIN = "load", "train"
_TRAINING = {TRAIN: 1.0}


@term(
    title="optimizer states on the host",
    equation="params × bytes_each / ranks × ranks_per_node",
    source="ds-stage12",
    exactness="derived",
    changes_it="more nodes; optimizer offload off",
)
def host_state_bytes(params: Array, bytes_each: Array, ranks: Array, ranks_per_node: Array) -> Array:
    """Offloaded master, fp32 gradient, staging copy and moments of the node's ranks.

    Equation: 18·Ψ·L/N under DeepSpeed (4 master + 4 gradient + 2 staging + 8 moments), 20 with accumulation; 16 under FSDP2.

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


@term(title="transfer buffers", equation="elements × bytes_each × ranks_per_node", source="ds-stage12", exactness="derived")
def host_buffer_bytes(elements: Array, bytes_each: float, ranks_per_node: Array) -> Array:
    """Pinned buffers each rank keeps for moving tensors: one largest parameter, or the NVMe swap pool. Bytes per node."""
    return elements * bytes_each * ranks_per_node


@term(title="offloaded activations", equation="tokens × bytes_per_token × in_flight / tensor_ranks × ranks_per_node", source="ds-engine",
      exactness="derived", changes_it="sequence length, micro-batch")  # fmt: skip
def host_activation_bytes(tokens: Array, bytes_per_token: Array, in_flight: Array, tensor_ranks: Array, ranks_per_node: Array) -> Array:
    """Checkpointed block inputs kept in pinned host memory. Bytes per node."""
    return tokens * bytes_per_token * in_flight / tensor_ranks * ranks_per_node


@term(title="model while loading", equation="params × bytes_each × copies", source="ds-engine", exactness="derived",
      changes_it="meta loading or zero.Init: one copy a node instead of one a rank")  # fmt: skip
def load_bytes(params: Array, bytes_each: Array, copies: Array) -> Array:
    """Checkpoint weights in host memory while ranks load them. Bytes per node."""
    return params * bytes_each * copies


def add_host(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the host lines of one node."""
    c = columns
    per_node = np.minimum(c.world_size, setup.pool.node.gpus_per_node) * 1.0
    optimizer, parameters = c.offload_optimizer > 0, c.offload_parameters > 0
    deepspeed = c.deepspeed > 0
    accumulates = (c.grad_accum > 1) & (c.gathers == 0)
    staging = c.compute_bytes * (1.0 + accumulates)
    moments = np.where(c.offload_optimizer == 1, c.master_bytes + 4.0 + c.state_bytes, 0.0)
    each = np.where(deepspeed, moments + staging, c.grad_bytes + c.state_bytes)
    ledger.add(host_state_bytes, "optimizer_states", "always", _TRAINING, params=share.trainable * optimizer, bytes_each=each,
               ranks=c.state_ranks, ranks_per_node=per_node)  # fmt: skip
    if OPTIMIZERS[setup.recipe.optimizer].paged:
        ledger.add(host_state_bytes, "optimizer_states", "always", _TRAINING, params=share.trainable * ~optimizer, bytes_each=c.state_bytes,
                   ranks=c.state_ranks, ranks_per_node=per_node)  # fmt: skip
    stored = (share.trainable * c.param_bytes + share.frozen * c.frozen_bytes) * (c.offload_parameters == 1)
    ledger.add(host_parameter_bytes, "parameters", "always", _TRAINING, params=stored, bytes_each=np.ones(len(c)), ranks=c.param_ranks,
               ranks_per_node=per_node)  # fmt: skip
    swap = np.where(c.offload_optimizer == 2, 4.0 * np.minimum(c.sub_group, share.trainable / c.state_ranks) * 4, share.largest * 2.0)
    pool = np.where(c.offload_parameters == 2, 1e9, 0.0)
    ledger.add(
        host_buffer_bytes,
        "buffers",
        "always",
        _TRAINING,
        elements=(swap * (optimizer & deepspeed) + pool * parameters),
        bytes_each=1.0,
        ranks_per_node=per_node,
    )
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
    # FSDP2's script loads on one rank a node and stage 3 loads partitioned; the others load a whole copy in every rank.
    copies = np.where((c.fsdp2 > 0) | (c.gathers > 0), 1.0, per_node)
    ledger.add(
        load_bytes, "overhead", "always", {LOAD: 1.0}, params=share.inside + share.outside, bytes_each=c.compute_bytes, copies=copies
    )


def host_peak(ledger: Ledger) -> Array:
    """Bytes per node at the worse of loading and training."""
    return np.maximum(ledger.at(LOAD), ledger.at(TRAIN))


def pinned_rounding_bytes(block_bytes: float) -> int:
    """Bytes torch's pinned allocator adds to one block: it takes the next power of two unless a rounding threshold is set.

    Source: torch CachingHostAllocator; ``pinned_max_round_threshold_mb`` in the launch file avoids it.

    Example: the fp32 partition of 70.6e9 parameters on 8 ranks takes 68.7e9 bytes instead of 35.3e9.
        >>> round((35.3e9 + pinned_rounding_bytes(35.3e9)) / 1e9, 1)
        68.7
    """
    size = max(1, int(block_bytes))
    return (1 << (size - 1).bit_length()) - size
