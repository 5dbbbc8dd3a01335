"""ZeRO++: weights gathered as int8 (qwZ), gradients exchanged as int4 in two hops (qgZ)."""

from __future__ import annotations

from app.domain.cards import term
from app.domain.setup import Array

_GROUP = 16_384
"""Elements that share one fp32 scale, at most."""
INT8_BYTES, INT4_BYTES = 1.0 + 4.0 / _GROUP, 0.5 + 4.0 / _GROUP


@term(
    title="gradients exchanged in the node (int4)",
    equation="elements × bytes_each × (ranks - 1) / ranks × times",
    source="zeropp",
    exactness="derived",
    changes_it="qgZ; fewer micro-steps",
)
def near_exchange_bytes(elements: Array, bytes_each: float, ranks: Array, times: Array) -> Array:
    """Bytes each GPU sends in the first hop of qgZ, an all-to-all in the node. Bytes per GPU and step.

    Equation: P · (½ + scales) · (L − 1)/L, L GPUs a node
    """
    sent: Array = elements * bytes_each * (ranks - 1) / ranks * times
    return sent


@term(
    title="gradients exchanged across nodes (int4)",
    equation="elements / local × bytes_each × (ranks - 1) / ranks × times",
    source="zeropp",
    exactness="derived",
    changes_it="qgZ; fewer micro-steps",
)
def far_exchange_bytes(elements: Array, local: Array, bytes_each: float, ranks: Array, times: Array) -> Array:
    """Bytes each GPU sends in the second hop of qgZ: its node's sum of 1/L of the gradients, between nodes. Bytes per GPU and step.

    Equation: P/L · (½ + scales) · (K − 1)/K, K nodes

    Source: Wang et al., ZeRO++, section 3.3: a node sends P elements across instead of P · L by a flat all-to-all, at a quarter of the
    bytes of bf16.

    Example: 18e9 gradients, 8 GPUs a node: across a large number of nodes a node sends ¼ of the 36 GB of a bf16 reduce-scatter.
        >>> round(8 * far_exchange_bytes(18e9, 8, 0.5, 10**9, 1) / 36e9, 3)
        0.25
    """
    sent: Array = elements / local * bytes_each * (ranks - 1) / ranks * times
    return sent
