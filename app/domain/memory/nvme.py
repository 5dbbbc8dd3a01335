"""Disk space of one node under NVMe offload (ZeRO-3 only)."""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Tally
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share


@term(title="optimizer states on disk", equation="params × bytes_each / ranks × ranks_per_node", source="ds-swap", exactness="derived")
def nvme_state_bytes(params: Array, bytes_each: Array, ranks: Array, ranks_per_node: Array) -> Array:
    """Master, moments and gradient files of the node's ranks.

    Equation: (4 + 8 + 4)·Ψ·L/N for Adam.

    Returns:
        Bytes per node.

    Source: DeepSpeed runtime/swap_tensor.

    Example: 70.6e9 parameters on one node.
        >>> nvme_state_bytes(70.6e9, 16, 8, 8) / 1e12
        1.1296
    """
    return params * bytes_each / ranks * ranks_per_node


@term(title="parameters on disk", equation="params × bytes_each / ranks × ranks_per_node", source="ds-swap", exactness="derived")
def nvme_parameter_bytes(params: Array, bytes_each: Array, ranks: Array, ranks_per_node: Array) -> Array:
    """Weight shards swapped to disk. Bytes per node."""
    return params * bytes_each / ranks * ranks_per_node


def add_nvme(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the disk lines of one node."""
    c = columns
    if not ((c.offload_optimizer == 2) | (c.offload_parameters == 2)).any():
        return
    per_node = np.minimum(c.world_size, setup.pool.node.gpus_per_node) * 1.0
    ledger.add(nvme_state_bytes, "optimizer_states", "always", {}, params=share.trainable * (c.offload_optimizer == 2),
               bytes_each=c.master_bytes + 4.0 + c.state_bytes, ranks=c.state_ranks, ranks_per_node=per_node)  # fmt: skip
    ledger.add(nvme_parameter_bytes, "parameters", "always", {}, params=(share.trainable + share.frozen) * (c.offload_parameters == 2),
               bytes_each=c.param_bytes, ranks=c.param_ranks, ranks_per_node=per_node)  # fmt: skip
