"""Links: a bandwidth, a start-up time, and how fast the bandwidth is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link as the α–β model sees it.

    Attributes:
        name: ``nvlink4``, ``pcie4``, ``ethernet`` …
        bytes_per_s: bus bandwidth a ring collective reaches with large messages: per GPU inside a node, per node between nodes.
        latency_s: time of a collective that carries almost nothing (α).
        hop_s: additional time for each rank of the ring.
    """

    name: str
    bytes_per_s: float
    latency_s: float
    hop_s: float
