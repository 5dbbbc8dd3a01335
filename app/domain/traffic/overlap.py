"""How much of the traffic compute can hide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from app.domain.setup import Array, Columns
from app.domain.traffic.volumes import Flow


def windows_s(compute_s: Array, forward_share: Array, grad_accum: Array) -> dict[str, Array]:
    """Compute per step that each kind of transfer can run beside, in seconds.

    Args:
        compute_s: compute of the whole step.
        forward_share: share of it that is forward.
        grad_accum: micro-steps.

    Example: 8 micro-steps, a third of 24 s forward.
        >>> {name: float(s) for name, s in windows_s(np.array(24.0), np.array(1 / 3), np.array(8)).items()}
        {'forward': 8.0, 'backward': 16.0, 'last_backward': 2.0}
    """
    forward = compute_s * forward_share
    backward = compute_s - forward
    return {"forward": forward, "backward": backward, "last_backward": backward / np.maximum(1, grad_accum)}


def overlap_fracs(columns: Columns, fracs: Mapping[str, float]) -> Array:
    """Share of a transfer that costs nothing while it runs beside compute, by the candidate's framework."""
    fraction: Array = np.select([columns.fsdp2 > 0, columns.zero3], [fracs["fsdp2"], fracs["deepspeed"]], fracs["ddp"])
    return fraction


def exposed_s(flows: Sequence[Flow], windows: Mapping[str, Array], overlap_frac: Array) -> tuple[Array, ...]:
    """Seconds of each flow that are not behind compute.

    What is first in a forward or last in a backward has nothing to run beside. The rest of the flows of one window share its compute in
    proportion to their length; what fits is hidden but for the share it takes away from the compute beside it.

    Equation: t − overlap · min(Σ t_rest, window) · t_rest / Σ t_rest

    Args:
        flows: as priced by ``evaluate_traffic``.
        windows: compute by what it can hide, seconds per step.
        overlap_frac: share of a hidden transfer that costs nothing.

    Returns:
        One array a flow, seconds per step: never negative, never above the flow's own time.
    """
    rest = [flow.seconds * (1 - flow.lead_frac) for flow in flows]
    out = []
    for flow, mine in zip(flows, rest, strict=True):
        if flow.hidden_by == "nothing":
            out.append(flow.seconds)
            continue
        rivals = sum((r for f, r in zip(flows, rest, strict=True) if f.hidden_by == flow.hidden_by), np.zeros_like(mine))
        behind = np.minimum(rivals, windows[flow.hidden_by]) * mine / np.maximum(rivals, 1e-30)
        out.append(flow.seconds - behind * overlap_frac)
    return tuple(out)
