"""One optimizer step: compute, the traffic it cannot hide, the update, and offloaded work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.ledger import Ledger
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share
from app.domain.speed.compute import add_compute, flops_in, forward_share
from app.domain.speed.offload import Beside, add_offload, add_optimizer
from app.domain.traffic.overlap import exposed_s, overlap_fracs, windows_s
from app.domain.traffic.volumes import Traffic, evaluate_traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Time of every candidate, in seconds per optimizer step, with the ledgers it was made from."""

    compute: Ledger
    optimizer: Ledger
    offload: Ledger
    traffic: Traffic
    exposed: tuple[Array, ...]
    compute_s: Array
    exposed_communication_s: Array
    optimizer_s: Array
    offload_s: Array
    step_s: Array
    tokens_per_step: Array


def evaluate_speed(setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Speed:
    """Evaluate every time term for every candidate once."""
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
