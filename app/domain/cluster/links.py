"""Links: a bandwidth, a start-up time, and how fast the bandwidth is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link as the α–β model sees it.

    Attributes:
        name: ``nvlink4``, ``pcie4``, ``ethernet`` …
        bytes_per_s: bus bandwidth a ring collective reaches with large messages: per GPU inside a node, per node between nodes.
        latency_s: start-up of one call.
        hop_s: additional time for each step of a ring.
        tree_hop_s: the same for each level of a tree, up or down; 0 where no tree is used.
        in_switch_bytes_per_s: bus bandwidth of an all-reduce done by the switch; 0 where it cannot.
        in_switch_ranks: fewest ranks for which the switch is used.
        pairwise: every pair of devices has its own link, so that a few of them reach a few links only.
    """

    name: str
    bytes_per_s: float
    latency_s: float
    hop_s: float
    tree_hop_s: float = 0.0
    in_switch_bytes_per_s: float = 0.0
    in_switch_ranks: int = 0
    pairwise: bool = False
