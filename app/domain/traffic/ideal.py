"""The textbook figures, shown beside what the frameworks really do."""

from __future__ import annotations


def ideal_states_bytes(params: int, ranks: int) -> dict[str, int]:
    """Model states of mixed-precision Adam per GPU: 2 + 2 + 12 bytes per parameter, divided as each stage divides them.

    Equation: DDP 16Ψ; ZeRO-1 4Ψ + 12Ψ/N; ZeRO-2 2Ψ + 14Ψ/N; ZeRO-3 16Ψ/N

    Args:
        params: Ψ, trained parameters.
        ranks: N.

    Returns:
        Bytes per GPU by strategy.

    Source: Rajbhandari et al., ZeRO, figure 1.

    Example:
        >>> {k: v / 1e9 for k, v in ideal_states_bytes(7_500_000_000, 64).items()}
        {'ddp': 120.0, 'zero1': 31.40625, 'zero2': 16.640625, 'zero3': 1.875}
    """
    return {
        "ddp": 16 * params,
        "zero1": 4 * params + 12 * params // ranks,
        "zero2": 2 * params + 14 * params // ranks,
        "zero3": 16 * params // ranks,
    }


def ideal_traffic_bytes(params: int, ranks: int) -> dict[str, int]:
    """Ring traffic of one step without accumulation, 2-byte elements, per GPU.

    Equation: 2·(N−1)/N·2Ψ for DDP, ZeRO-1 and ZeRO-2; 3·(N−1)/N·2Ψ for ZeRO-3

    Example:
        >>> ideal_traffic_bytes(7_500_000_000, 64)["zero3"] / ideal_traffic_bytes(7_500_000_000, 64)["ddp"]
        1.5
    """
    once = 2 * params * (ranks - 1) // ranks
    return {"ddp": 2 * once, "zero1": 2 * once, "zero2": 2 * once, "zero3": 3 * once}
