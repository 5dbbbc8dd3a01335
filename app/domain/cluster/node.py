"""One machine: its devices, the links between them, its memory and disks."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.cluster.gpu import Gpu
from app.domain.cluster.links import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of a pool.

    Attributes:
        gpu: the device it holds.
        gpus_per_node: how many.
        intra_node: link between devices of the node.
        inter_node: the node's link to others, all its NICs together.
        host_memory_bytes: RAM; None when unknown, then host verdicts are not given.
        host_memory_assumed: the RAM was not given but is what such machines usually have; a plan beyond it is doubtful, not impossible.
        nvme_bytes: local disk space; None when unknown or absent.
        nvme_read_bytes_per_s, nvme_write_bytes_per_s: the node's disks together.
        host_memory_bytes_per_s: sustained RAM bandwidth, which paces CPU Adam.
        usd_per_hour: price of one node, where known.
    """

    gpu: Gpu
    gpus_per_node: int
    intra_node: Link
    inter_node: Link
    host_memory_bytes: int | None
    nvme_bytes: int | None
    nvme_read_bytes_per_s: float
    nvme_write_bytes_per_s: float
    host_memory_bytes_per_s: float
    usd_per_hour: float | None = None
    host_memory_assumed: bool = False
