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


def members_here(ranks: Array, stride: Array, node: Node) -> Array:
    """Members of a group that share one node, at least one."""
    members: Array = np.clip(node.gpus_per_node // np.maximum(1, stride), 1, np.maximum(1, ranks))
    return members


def bus_bytes_per_s(ranks: Array, stride: Array, node: Node, kind: str = "ring") -> Array:
    """Bus bandwidth a large collective of this group reaches, bytes/s per GPU.

    Inside a node it is the device link: the switch's own rate for an all-reduce of enough ranks, and a share of the links where each
    pair of devices has its own. Across nodes a ring is paced by the node's NICs, of which the group owns the share that its members
    on the node have; it is never faster than the device link.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md; rates.json for the rates reached.
    """
    link, local = node.intra_node, members_here(ranks, stride, node)
    paired = (np.maximum(1, ranks) - 1) / max(1, node.gpus_per_node - 1) if link.pairwise else 1.0
    inside = link.bytes_per_s * np.clip(paired, 1.0 / node.gpus_per_node, 1.0)
    if kind == "all_reduce" and link.in_switch_bytes_per_s:
        inside = np.where(ranks >= link.in_switch_ranks, link.in_switch_bytes_per_s, inside)
    nic = node.inter_node.bytes_per_s * np.minimum(1.0, local / node.gpus_per_node)
    return np.where(spans_nodes(ranks, stride, node), np.minimum(nic, link.bytes_per_s), inside)


def latency_s(ranks: Array, stride: Array, node: Node, kind: str = "ring") -> Array:
    """Time of one call that carries almost nothing: start-up plus a hop for each step of the ring, or of the tree where that is less.

    Equation: α + (n − nodes)·hop + (nodes − 1)·hop_net for a gather or scatter; an all-reduce goes round twice, or up and down a
    tree of log2(nodes) levels.

    Source: NCCL's tuner (src/graph/tuning.cc).
    """
    near, far, local = node.intra_node, node.inter_node, members_here(ranks, stride, node)
    across = spans_nodes(ranks, stride, node)
    nodes = np.where(across, np.maximum(1, ranks / local), 1)
    rounds = 2 if kind == "all_reduce" else 1
    steps = rounds * ((ranks - nodes) * near.hop_s + (nodes - 1) * far.hop_s)
    if kind == "all_reduce" and far.tree_hop_s:
        tree = 2 * (local - 1) * near.hop_s + 2 * np.log2(np.maximum(2, nodes)) * far.tree_hop_s
        steps = np.where(across, np.minimum(steps, tree), steps)
    return (np.where(across, far.latency_s, near.latency_s) + steps) * (ranks > 1)


def exchange_bytes_per_s(ranks: Array, stride: Array, node: Node) -> Array:
    """Rate at which every rank can send to every other at once, bytes/s per GPU.

    A ring crosses a node's border once for all its members; in an all-to-all each member sends its own data across, over its own share
    of the NICs, and a part of (n − local)/(n − 1) of it leaves the node.
    """
    local = members_here(ranks, stride, node)
    leaving = np.maximum(0, ranks - local) / np.maximum(1, ranks - 1)
    share = node.inter_node.bytes_per_s / node.gpus_per_node
    rate: Array = np.minimum(node.intra_node.bytes_per_s, share / np.maximum(leaving, 1e-9))
    return rate


def collective_s(sent_bytes: Array, calls: Array, group: tuple[Array, Array], node: Node, kind: str = "ring") -> Array:
    """Seconds of ``calls`` collectives that send ``sent_bytes`` in all from each GPU.

    Equation: calls · α + bytes / busbw. The size of one call matters: at bytes/calls = α · busbw half of the bandwidth is lost.

    Args:
        group: ranks that take part, and how far apart neighbours are.
        kind: ``ring`` (gather, scatter), ``all_reduce``, or ``exchange`` (all-to-all, send and receive).
    """
    ranks, stride = group
    rate = exchange_bytes_per_s(ranks, stride, node) if kind == "exchange" else bus_bytes_per_s(ranks, stride, node, kind)
    return calls * latency_s(ranks, stride, node, kind) + sent_bytes / rate
