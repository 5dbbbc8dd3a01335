"""Time of offloaded work: copies over PCIe, Adam on the host, NVMe reads and writes."""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.memory.activations import block_bytes
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share

# fp32 master, two moments and gradient are read (16 bytes), master and moments written (12), the 16-bit copy written (2).
_CPU_ADAM_BYTES = 30.0
_NVME_BYTES_EACH_WAY = 16.0


@term(
    title="optimizer update",
    equation="params × bytes_each / bytes_per_s",
    source="torch-optim",
    exactness="derived",
    changes_it="more ranks",
)
def gpu_update_s(params: Array, bytes_each: Array, bytes_per_s: float) -> Array:
    """Seconds the update takes on the GPU: every state and gradient read and written once through HBM."""
    return params * bytes_each / bytes_per_s


@term(title="Adam on the host", equation="params × bytes_each × ranks_per_node / bytes_per_s", source="zero-offload", exactness="derived",
      changes_it="host memory bandwidth; more nodes")  # fmt: skip
def cpu_update_s(params: Array, bytes_each: float, ranks_per_node: Array, bytes_per_s: float) -> Array:
    """Seconds of the host update: the node's ranks share its memory bandwidth.

    Equation: 30 bytes · Ψ/N · L / RAM bandwidth
    """
    return params * bytes_each * ranks_per_node / bytes_per_s


@term(title="gradients and weights over PCIe", equation="params × bytes_each / bytes_per_s", source="zero-offload", exactness="derived")
def pcie_s(params: Array, bytes_each: Array, bytes_per_s: float) -> Array:
    """Seconds of copies between host and device per step."""
    return params * bytes_each / bytes_per_s


@term(
    title="optimizer states over NVMe",
    equation="params × bytes_each × ranks_per_node / bytes_per_s",
    source="zero-infinity",
    exactness="derived",
)
def nvme_s(params: Array, bytes_each: float, ranks_per_node: Array, bytes_per_s: float) -> Array:
    """Seconds to read and write the states of the node's ranks once."""
    return params * bytes_each * ranks_per_node / bytes_per_s


@term(
    title="activations to and from the host", equation="tokens × bytes_per_token / bytes_per_s", source="zero-infinity", exactness="derived"
)
def activation_copy_s(tokens: Array, bytes_per_token: Array, bytes_per_s: float) -> Array:
    """Seconds of checkpointed inputs going out in forward and back in backward, per step."""
    return tokens * bytes_per_token / bytes_per_s


def add_optimizer(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the update on the GPU, for what is not offloaded."""
    c, gpu = columns, setup.pool.node.gpu
    shard = share.trainable / c.state_ranks * (c.offload_optimizer == 0)
    touched = 2 * (c.master_bytes + c.state_bytes) + 2 * c.param_bytes + 2 * c.grad_bytes
    ledger.add(
        gpu_update_s, "optimizer", "step", {}, params=shard, bytes_each=touched, bytes_per_s=gpu.hbm_bytes_per_s * setup.rates.memory_frac
    )


def add_offload(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the copies and the host update of offloaded candidates."""
    c, node = columns, setup.pool.node
    per_node = np.minimum(c.world_size, node.gpus_per_node) * 1.0
    offloaded = c.offload_optimizer > 0
    shard = share.trainable / c.state_ranks * offloaded
    ledger.add(cpu_update_s, "offload", "step", {}, params=shard, bytes_each=_CPU_ADAM_BYTES, ranks_per_node=per_node,
               bytes_per_s=node.host_memory_bytes_per_s)  # fmt: skip
    down = np.where(c.fsdp2 > 0, c.param_bytes, 4.0) + c.compute_bytes * (c.grad_accum - 1) * 2
    up = np.where(c.fsdp2 > 0, 2.0 * c.param_bytes * c.grad_accum, c.compute_bytes)
    ledger.add(pcie_s, "offload", "step", {}, params=shard, bytes_each=down + up, bytes_per_s=node.gpu.pcie_bytes_per_s)
    fetched = (share.inside + share.outside) / c.param_ranks * ((c.offload_parameters > 0) & (c.deepspeed > 0))
    ledger.add(
        pcie_s,
        "offload",
        "step",
        {},
        params=fetched,
        bytes_each=2.0 * c.compute_bytes * c.grad_accum,
        bytes_per_s=node.gpu.pcie_bytes_per_s,
    )
    swapped = shard * (c.offload_optimizer == 2)
    slower = min(node.nvme_read_bytes_per_s, node.nvme_write_bytes_per_s)
    ledger.add(nvme_s, "offload", "step", {}, params=swapped, bytes_each=_NVME_BYTES_EACH_WAY, ranks_per_node=per_node, bytes_per_s=slower)
    kept = block_bytes(setup, c).kept_all / c.pp * (c.act_offload > 0)
    # Out in forward and in again in backward, behind compute except for what PCIe cannot keep up with; half is taken as exposed.
    ledger.add(activation_copy_s, "offload", "step", {}, tokens=share.tokens * c.grad_accum, bytes_per_token=kept / c.tp,
               bytes_per_s=node.gpu.pcie_bytes_per_s)  # fmt: skip
