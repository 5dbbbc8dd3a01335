"""One optimizer step: compute, the traffic it cannot hide, the update, and offloaded work."""

from __future__ import annotations

import numpy as np

from app.domain.companions import columns_of, setup_of
from app.domain.ledger import Ledger
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share, share_of
from app.domain.speed.companions import forward_speed, joined
from app.domain.speed.compute import add_compute, flops_in, forward_share
from app.domain.speed.offload import Beside, add_offload, add_optimizer
from app.domain.speed.result import Speed
from app.domain.traffic.overlap import exposed_s, overlap_fracs, windows_s
from app.domain.traffic.volumes import evaluate_traffic


def evaluate_speed(setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Speed:
    """Evaluate every time term of every model for every candidate once."""
    own = _speed_of(setup, numbers, columns, share)
    if not setup.companions:
        return own
    beside = []
    for companion in setup.companions:
        theirs = setup_of(setup, companion)
        c = columns_of(theirs, companion, columns)
        part = share_of(theirs, theirs.numbers, c)
        speed = _speed_of(theirs, theirs.numbers, c, part) if companion.trains else forward_speed(theirs, companion, c, part)
        beside.append((companion, speed))
    return joined(own, beside)


def _speed_of(setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Speed:
    """One trained model's step."""
    size = len(columns)
    compute, optimizer, offload = Ledger(size), Ledger(size), Ledger(size)
    compute_s = add_compute(compute, setup, numbers, columns, share)
    add_optimizer(optimizer, setup, columns, share)
    traffic = evaluate_traffic(setup, numbers, columns, share)
    windows = windows_s(compute_s, forward_share(numbers, columns), columns.grad_accum)
    overlap = overlap_fracs(columns, setup.rates.overlap_frac)
    exposed = exposed_s(traffic.flows, windows, overlap)
    exposed_offload = add_offload(offload, setup, columns, share, Beside(windows=windows, overlap_frac=overlap))
    communication = sum(exposed, np.zeros(size))
    step = compute_s + communication + optimizer.total() + exposed_offload
    return Speed(
        compute=compute, optimizer=optimizer, offload=offload, traffic=traffic, exposed=exposed, compute_s=compute_s,
        exposed_communication_s=communication, optimizer_s=optimizer.total(), offload_s=exposed_offload, step_s=step,
        tokens_per_step=columns.micro_batch * columns.grad_accum * columns.dp * float(setup.recipe.seq_len),
    )  # fmt: skip


def model_flops_utilisation(setup: TrainingSetup, tokens_per_s_per_gpu: Array) -> Array:
    """Share of the dense peak, by torchtitan's convention: 3 · (linear + head + unmasked attention), recompute not counted.

    Source: torchtitan models/utils.py.
    """
    flops = flops_in(setup)
    per_token = 3 * (flops.linear + flops.head + flops.attention_full)
    return (
        tokens_per_s_per_gpu * per_token / setup.pool.node.gpu.peak("bf16" if setup.recipe.precision == "fp8" else setup.recipe.precision)
    )
