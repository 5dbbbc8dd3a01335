"""Cost of a collective under the α–β model, on one link level or across nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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


@dataclass(frozen=True)
class Group:
    """Ranks that communicate with each other: how many, how far apart neighbours are, and on which machines.

    What links and start-ups follow from that is worked out once for all collectives of the group.
    """

    ranks: Array
    stride: Array
    node: Node

    @cached_property
    def spans_nodes(self) -> Array:
        """Whether the group leaves its node."""
        return self.ranks * self.stride > self.node.gpus_per_node

    @cached_property
    def leaves(self) -> bool:
        """Whether any candidate's group leaves its node."""
        return bool(self.spans_nodes.any())

    @cached_property
    def local(self) -> Array:
        """Members that share one node, at least one."""
        members: Array = self.node.gpus_per_node // np.maximum(1, self.stride)
        return np.minimum(np.maximum(1, members), np.maximum(1, self.ranks))

    def bus_bytes_per_s(self, kind: str = "ring") -> Array:
        """Bus bandwidth a large collective of this group reaches, bytes/s per GPU.

        Inside a node it is the device link: the switch's own rate for an all-reduce of enough ranks, and a share of the links where
        each pair of devices has its own. Across nodes a ring is paced by the node's NICs, of which the group owns the share that its
        members on the node have; it is never faster than the device link.

        Source: NVIDIA nccl-tests, doc/PERFORMANCE.md; rates.json for the rates reached.
        """
        link, node = self.node.intra_node, self.node
        inside: Any = link.bytes_per_s
        if link.pairwise:
            paired = (np.maximum(1, self.ranks) - 1) / max(1, node.gpus_per_node - 1)
            inside = inside * np.minimum(1.0, np.maximum(1.0 / node.gpus_per_node, paired))
        if kind == "all_reduce" and link.in_switch_bytes_per_s:
            inside = np.where(self.ranks >= link.in_switch_ranks, link.in_switch_bytes_per_s, inside)
        if not self.leaves:
            return np.asarray(inside)
        nic = node.inter_node.bytes_per_s * np.minimum(1.0, self.local / node.gpus_per_node)
        return np.where(self.spans_nodes, np.minimum(nic, link.bytes_per_s), inside)

    def latency_s(self, kind: str = "ring") -> Array:
        """Time of one call that carries almost nothing: start-up plus a hop for each step of the ring, or of the tree where that is less.

        Equation: α + (n − nodes)·hop + (nodes − 1)·hop_net for a gather or scatter; an all-reduce goes round twice, or up and down a
        tree of log2(nodes) levels.

        Source: NCCL's tuner (src/graph/tuning.cc).
        """
        near, far, local = self.node.intra_node, self.node.inter_node, self.local
        rounds = 2 if kind == "all_reduce" else 1
        if not self.leaves:
            return (near.latency_s + rounds * (self.ranks - 1) * near.hop_s) * (self.ranks > 1)
        across = self.spans_nodes
        nodes = np.where(across, np.maximum(1, self.ranks / local), 1)
        steps = rounds * ((self.ranks - nodes) * near.hop_s + (nodes - 1) * far.hop_s)
        if kind == "all_reduce" and far.tree_hop_s:
            tree = 2 * (local - 1) * near.hop_s + 2 * np.log2(np.maximum(2, nodes)) * far.tree_hop_s
            steps = np.where(across, np.minimum(steps, tree), steps)
        return (np.where(across, far.latency_s, near.latency_s) + steps) * (self.ranks > 1)

    def exchange_bytes_per_s(self) -> Array:
        """Rate at which every rank can send to every other at once, bytes/s per GPU.

        A ring crosses a node's border once for all its members; in an all-to-all each member sends its own data across, over its own
        share of the NICs, and a part of (n − local)/(n − 1) of it leaves the node.
        """
        leaving = np.maximum(0, self.ranks - self.local) / np.maximum(1, self.ranks - 1)
        share = self.node.inter_node.bytes_per_s / self.node.gpus_per_node
        rate: Array = np.minimum(self.node.intra_node.bytes_per_s, share / np.maximum(leaving, 1e-9))
        return rate

    def collective_s(self, sent_bytes: Array, calls: Array, kind: str = "ring") -> Array:
        """Seconds of ``calls`` collectives that send ``sent_bytes`` in all from each GPU.

        Equation: calls · α + bytes / busbw. The size of one call matters: at bytes/calls = α · busbw half of the bandwidth is lost.

        Args:
            kind: ``ring`` (gather, scatter), ``all_reduce``, or ``exchange`` (all-to-all, send and receive).
        """
        rate = self.exchange_bytes_per_s() if kind == "exchange" else self.bus_bytes_per_s(kind)
        return calls * self.latency_s(kind) + sent_bytes / rate
