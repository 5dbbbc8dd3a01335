"""Time of offloaded work: copies over PCIe, Adam on the host, NVMe reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.memory.activations import block_bytes
from app.domain.memory.states import uneven_factor
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share

# fp32 master, two moments and gradient are read (16 bytes), master and moments written (12), the 16-bit copy written (2).
_CPU_ADAM_BYTES = 30.0
# On the drive: master, two moments and the gradient. The gradient is written and all four read, master and moments written back.
_NVME_READ_BYTES, _NVME_WRITE_BYTES = 16.0, 16.0


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
    equation="params × ranks_per_node × (read_bytes / read_bytes_per_s + write_bytes / write_bytes_per_s)",
    source="zero-infinity",
    exactness="derived",
    changes_it="more or faster drives; more nodes",
)
def nvme_s(
    params: Array, read_bytes: Array, write_bytes: Array, ranks_per_node: Array, read_bytes_per_s: float, write_bytes_per_s: float
) -> Array:
    """Seconds the node's drives need for what its ranks read and write per step, one after the other: writes set the pace.

    Example: 7e9 parameters of one node on four Gen4 drives that read 10 and write 5 GB/s.
        >>> round(nvme_s(7e9 / 8, 16.0, 16.0, 8, 10e9, 5e9), 1)
        33.6
    """
    return params * ranks_per_node * (read_bytes / read_bytes_per_s + write_bytes / write_bytes_per_s)


@term(
    title="parameters over NVMe",
    equation="params × ranks_per_node × (read_bytes / read_bytes_per_s + write_bytes / write_bytes_per_s)",
    source="zero-infinity",
    exactness="derived",
    changes_it="keep parameters in host memory",
)
def nvme_parameters_s(
    params: Array, read_bytes: Array, write_bytes: Array, ranks_per_node: Array, read_bytes_per_s: float, write_bytes_per_s: float
) -> Array:
    """Seconds the node's drives need for the parameters its ranks read in forward and backward and write after the step."""
    return nvme_s(params, read_bytes, write_bytes, ranks_per_node, read_bytes_per_s, write_bytes_per_s)


@term(
    title="activations to and from the host",
    equation="2 × tokens × bytes_per_token / bytes_per_s",
    source="zero-infinity",
    exactness="derived",
)
def activation_copy_s(tokens: Array, bytes_per_token: Array, bytes_per_s: float) -> Array:
    """Seconds of checkpointed inputs going out in forward and coming back in backward, per step."""
    return 2 * tokens * bytes_per_token / bytes_per_s


def add_optimizer(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the update on the GPU, for what is not offloaded."""
    c, gpu = columns, setup.pool.node.gpu
    shard = share.trainable / c.state_ranks * (1 - c.away) * uneven_factor(c, share)
    touched = 2 * (c.master_bytes + c.state_bytes) + 2 * c.param_bytes + 2 * c.grad_bytes
    ledger.add(
        gpu_update_s, "optimizer", "step", {}, params=shard, bytes_each=touched, bytes_per_s=gpu.hbm_bytes_per_s * setup.rates.memory_frac
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Compute that copies run beside.

    Attributes:
        windows: by pass, seconds per step, see ``traffic.overlap.windows_s``.
        overlap_frac: share of a copy that costs nothing meanwhile; parameters are fetched by the same calls that gather them.
    """

    windows: Mapping[str, Array]
    overlap_frac: Array

    def exposed_s(self, seconds: Array, window: str) -> Array:
        """Seconds of a copy that compute does not hide."""
        exposed: Array = seconds - np.minimum(seconds, self.windows[window]) * self.overlap_frac
        return exposed


def add_offload(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share, beside: Beside) -> Array:
    """Add the copies and the host update of offloaded candidates; returns the seconds that the schedule leaves exposed.

    Gradients leave during backward and parameters come during forward and backward, beside compute. The update on the host and what is
    written back after it wait for the whole gradient, so they are not hidden.

    Args:
        beside: the compute that copies can run beside.
    """
    c, total, exposed = columns, np.zeros(len(columns)), np.zeros(len(columns))
    if c.offload_optimizer.any() or c.offload_parameters.any():
        total, (coming, leaving) = _add_states(ledger, setup, c, share)
        exposed = sum((beside.exposed_s(coming / 2, window) for window in ("forward", "backward")), beside.exposed_s(leaving, "backward"))
    if c.act_offload.any():
        kept = block_bytes(setup, c).kept_all / c.pp * (c.act_offload > 0)
        moved = ledger.add(activation_copy_s, "offload", "step", {}, tokens=share.tokens * c.grad_accum, bytes_per_token=kept / c.tp,
                           bytes_per_s=setup.pool.node.gpu.pcie_bytes_per_s)  # fmt: skip
        exposed = exposed + sum(beside.exposed_s(moved / 2, window) for window in ("forward", "backward"))
    # The two directions of the link do not share: what leaves in backward runs beside what comes.
    return exposed + total


def _add_states(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> tuple[Array, tuple[Array, Array]]:
    """Add offloaded states: what nothing hides, and the copies that compute can, to the device and from it; seconds per step."""
    c, node = columns, setup.pool.node
    link, per_node = node.gpu.pcie_bytes_per_s, np.minimum(c.world_size, node.gpus_per_node) * 1.0
    whole = share.trainable / c.state_ranks * (c.offload_optimizer > 0)
    shard = whole * c.away
    update = ledger.add(cpu_update_s, "offload", "step", {}, params=shard, bytes_each=_CPU_ADAM_BYTES, ranks_per_node=per_node,
                        bytes_per_s=node.host_memory_bytes_per_s)  # fmt: skip
    # DeepSpeed adds micro-steps up on the host in 16 bits, out and back again (stage 3 even a single one), then sends the sum in fp32.
    summed = np.where(c.zero3 | (c.grad_accum > 1), c.compute_bytes * (2 * c.grad_accum - 1), 0.0)
    down = np.where(c.fsdp2 > 0, c.param_bytes * c.grad_accum, 4.0 * c.away + summed)
    leaving = ledger.add(pcie_s, "offload", "step", {}, params=whole, bytes_each=down, bytes_per_s=link)
    back = ledger.add(pcie_s, "offload", "step", {}, params=shard * (c.fsdp2 == 0), bytes_each=c.compute_bytes, bytes_per_s=link)
    held = (share.inside + share.outside) / c.param_ranks * (c.offload_parameters > 0)
    width = np.where(c.fsdp2 > 0, np.where(share.frozen > share.trainable, c.frozen_bytes, c.param_bytes), c.compute_bytes)
    coming = ledger.add(pcie_s, "offload", "step", {}, params=held, bytes_each=2.0 * width * c.grad_accum, bytes_per_s=link)
    drives = _add_drives(ledger, setup, c, (whole, held), per_node)
    return update + back + drives, (coming, leaving)


def _add_drives(ledger: Ledger, setup: TrainingSetup, columns: Columns, held: tuple[Array, Array], per_node: Array) -> Array:
    """Add what goes over NVMe: states once a step, parameters in each pass of each micro-step."""
    c, node = columns, setup.pool.node
    if not ((c.offload_optimizer == 2) | (c.offload_parameters == 2)).any():
        return np.zeros(len(c))
    states, parameters = held
    pace = {
        "ranks_per_node": per_node,
        "read_bytes_per_s": node.nvme_read_bytes_per_s,
        "write_bytes_per_s": node.nvme_write_bytes_per_s,
    }
    total = ledger.add(nvme_s, "offload", "step", {}, params=states * (c.offload_optimizer == 2), read_bytes=_NVME_READ_BYTES,
                       write_bytes=_NVME_WRITE_BYTES, **pace)  # fmt: skip
    return total + ledger.add(nvme_parameters_s, "offload", "step", {}, params=parameters * (c.offload_parameters == 2),
                              read_bytes=2.0 * c.compute_bytes * c.grad_accum, write_bytes=c.compute_bytes, **pace)  # fmt: skip
