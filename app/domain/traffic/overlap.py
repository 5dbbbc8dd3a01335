"""How much of the traffic compute can hide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.domain.setup import Array, Columns
from app.domain.traffic.volumes import Flow

# Backward is two thirds of a micro-step without recompute and three quarters with it.
_BACKWARD_FRAC = 0.67


def exposed_s(flows: Sequence[Flow], compute_s: Array, columns: Columns, overlap_frac: float) -> tuple[Array, ...]:
    """Seconds of each flow that are not behind compute.

    Flows of one kind share the compute that can hide them, in proportion to their length. DeepSpeed's stages 1 and 2 hide
    nothing unless overlap_comm is on. The first gather and the last reduction of a micro-step are never hidden: one part in
    as many as there are units.

    Args:
        flows: as priced by ``evaluate_traffic``.
        compute_s: compute of the whole step.
        columns: the candidates.
        overlap_frac: share of a hideable transfer that really runs behind compute.

    Returns:
        One array a flow, seconds per step.
    """
    budget = {
        "micro_step": compute_s * overlap_frac,
        "last_backward": compute_s * _BACKWARD_FRAC * overlap_frac / np.maximum(1, columns.grad_accum),
    }
    blocked = (columns.deepspeed > 0) & (columns.overlap_comm == 0)
    out = []
    for flow in flows:
        if flow.hidden_by == "nothing":
            out.append(flow.seconds)
            continue
        rivals = sum((f.seconds for f in flows if f.hidden_by == flow.hidden_by), np.zeros(len(columns)))
        share = flow.seconds / np.maximum(rivals, 1e-30)
        hidden = np.minimum(flow.seconds * overlap_frac, budget[flow.hidden_by] * share)
        out.append(np.where(blocked, flow.seconds, flow.seconds - hidden))
    return tuple(out)
