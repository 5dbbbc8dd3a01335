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
    hideable = [(flow, flow.seconds * (1 - flow.lead_frac)) for flow in flows if flow.hidden_by != "nothing"]
    rivals: dict[str, Array] = {}
    for flow, rest in hideable:
        rivals[flow.hidden_by] = rivals[flow.hidden_by] + rest if flow.hidden_by in rivals else rest
    hidden_frac = {window: np.minimum(1.0, windows[window] / np.maximum(rest, 1e-30)) * overlap_frac for window, rest in rivals.items()}
    exposed = iter([flow.seconds - rest * hidden_frac[flow.hidden_by] for flow, rest in hideable])
    return tuple(flow.seconds if flow.hidden_by == "nothing" else next(exposed) for flow in flows)
