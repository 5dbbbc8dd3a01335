"""Cost of one collective under the α–β model, on one link level or across nodes."""

from __future__ import annotations

import numpy as np

from app.domain.cluster.node import Node
from app.domain.setup import Array


def ring_bytes(payload_bytes: Array, ranks: Array) -> Array:
    """Bytes one GPU sends in a ring all-gather or reduce-scatter of a whole payload; an all-reduce is twice that.

    Equation: (n − 1)/n · payload

    Args:
        payload_bytes: size of the whole (gathered, or unreduced) tensor.
        ranks: n.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.

    Example:
        >>> ring_bytes(16.0, 8)
        14.0
    """
    sent: Array = payload_bytes * (ranks - 1) / ranks
    return sent


def spans_nodes(ranks: Array, stride: Array, node: Node) -> Array:
    """Whether a group of ``ranks`` whose neighbours are ``stride`` apart leaves the node."""
    return ranks * stride > node.gpus_per_node


def bus_bytes_per_s(ranks: Array, stride: Array, node: Node) -> Array:
    """Bus bandwidth a large collective of this group reaches, bytes/s per GPU.

    Inside a node it is the device link. Across nodes a ring is paced by the node's NICs, of which the group owns the share
    that its members on the node have; it is never faster than the device link.
    """
    local = np.clip(node.gpus_per_node / stride, 1, np.maximum(1, ranks))
    nic = node.inter_node.bytes_per_s * np.minimum(1.0, local / node.gpus_per_node)
    return np.where(spans_nodes(ranks, stride, node), np.minimum(nic, node.intra_node.bytes_per_s), node.intra_node.bytes_per_s)


def latency_s(ranks: Array, stride: Array, node: Node) -> Array:
    """Time of one call that carries almost nothing: start-up plus a hop for each rank of the ring."""
    across = spans_nodes(ranks, stride, node)
    start = np.where(across, node.inter_node.latency_s, node.intra_node.latency_s)
    nodes = np.maximum(1, ranks * stride / node.gpus_per_node)
    hops = np.minimum(ranks, node.gpus_per_node) * node.intra_node.hop_s + np.where(across, nodes * node.inter_node.hop_s, 0.0)
    return (start + hops) * (ranks > 1)


def collective_s(sent_bytes: Array, calls: Array, ranks: Array, stride: Array, node: Node) -> Array:
    """Seconds of ``calls`` collectives that send ``sent_bytes`` in all from each GPU.

    Equation: calls · α + bytes / busbw
    """
    return calls * latency_s(ranks, stride, node) + sent_bytes / bus_bytes_per_s(ranks, stride, node)
