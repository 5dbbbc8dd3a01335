"""Time of the models beside the trained one: a forward of each frozen one, and the step of each that is trained, once a step.

Models on the same GPUs run one after another, so their times add up. Generation, and handing weights to the engine that generates,
depend on lengths that a plan does not know, and are not counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.recipe.companion import Companion
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share
from app.domain.speed.compute import flops_in, launch_s, product_rate, products_in
from app.domain.speed.offload import pcie_s
from app.domain.speed.result import Speed
from app.domain.traffic.collectives import Group
from app.domain.traffic.overlap import exposed_s, overlap_fracs
from app.domain.traffic.volumes import Flow, Traffic, gather_sent_bytes

_FORWARD = "forward"


@term(title="forward", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="derived",
      changes_it="the companion's seq_len; a smaller companion; log-probabilities worked out once, before training")  # fmt: skip
def forward_s(tokens: Array, flops_per_token: float, rate: Array, ranks: Array) -> Array:
    """Seconds of a frozen model's forward over all sequences of a step.

    Equation: T · 2·(active parameters in products) + attention, over the rate that training's products reach

    Args:
        tokens: tokens of a step on this rank.
        flops_per_token: forward FLOPs of one token.
        rate: FLOP/s of one GPU.
        ranks: ranks that share the work of one token.

    Returns:
        Seconds per optimizer step.

    Source: facts on FLOP conventions; the share of the peak is the one fitted for training.

    Example: 16,384 tokens of 8e9 parameters at 400 TFLOP/s.
        >>> forward_s(16384, 16e9, 4e14, 1)
        0.65536
    """
    return tokens * flops_per_token / rate / ranks


def forward_speed(setup: TrainingSetup, companion: Companion, columns: Columns, share: Share) -> Speed:
    """What a frozen model adds to a step.

    Args:
        setup, columns, share: the companion's own.
    """
    c, size = columns, len(columns)
    compute, optimizer, offload = Ledger(size), Ledger(size), Ledger(size)
    dense, routed = products_in(setup)
    flops = flops_in(setup)
    # An engine's work is generation, which is not counted.
    ranks, tokens = c.tp * c.pp, share.tokens * c.grad_accum * (companion.cache_tokens is None)
    rate = product_rate(setup, setup.recipe.precision, share.tokens, dense.thin + dense.split * (c.tp - 1))
    per_token = dense.flops + routed.flops + flops.attention + flops.head
    seconds = compute.add(forward_s, "compute", "step", {}, tokens=tokens, flops_per_token=per_token, rate=rate, ranks=ranks)
    kernels = setup.rates.layer_launch_s + setup.rates.zero3_hook_s * (c.zero3 & (c.param_ranks > 1))
    seconds = np.maximum(seconds, launch_s(setup.model.num_layers / c.pp, c.grad_accum, kernels) * (tokens > 0))
    traffic = _gathers(setup, c, share) if companion.cache_tokens is None else Traffic(ledger=Ledger(size), flows=())
    overlap = overlap_fracs(c, setup.rates.overlap_frac)
    exposed = exposed_s(traffic.flows, {_FORWARD: seconds}, overlap) if traffic.flows else ()
    communication = sum(exposed, np.zeros(size))
    copies = np.zeros(size)
    if companion.on_host:
        held = (share.inside + share.outside) / c.param_ranks
        copied = offload.add(pcie_s, "offload", "step", {}, params=held, bytes_each=c.frozen_bytes * c.grad_accum,
                             bytes_per_s=setup.pool.node.gpu.pcie_bytes_per_s)  # fmt: skip
        copies = copied - np.minimum(copied, seconds) * overlap
    return Speed(
        compute=compute, optimizer=optimizer, offload=offload, traffic=traffic, exposed=exposed, compute_s=seconds,
        exposed_communication_s=communication, optimizer_s=np.zeros(size), offload_s=copies, step_s=seconds + communication + copies,
        tokens_per_step=np.zeros(size),
    )  # fmt: skip


def _gathers(setup: TrainingSetup, columns: Columns, share: Share) -> Traffic:
    """Weights gathered once in each forward."""
    c, ledger, whole = columns, Ledger(len(columns)), share.inside + share.outside
    divided = c.param_ranks > 1
    if not divided.any():
        return Traffic(ledger=ledger, flows=())
    group = Group(np.broadcast_to(c.param_ranks, c.row.shape), np.broadcast_to(c.tp, c.row.shape), setup.pool.node)
    units = np.where(c.fsdp2 > 0, share.layers + 2, np.maximum(share.layers, whole / np.maximum(1, c.prefetch)))
    times = c.grad_accum * divided
    sent = ledger.add(gather_sent_bytes, "traffic", "step", {}, elements=whole, bytes_each=c.frozen_bytes, ranks=group.ranks, times=times)
    lead = (share.outside / 2 + share.block) / np.maximum(1, whole)
    seconds = np.where(sent > 0, group.collective_s(sent, units * times), 0.0)
    flow = Flow(line=0, ranks=group.ranks, spans=group.spans_nodes, seconds=seconds, hidden_by=_FORWARD, lead_frac=np.minimum(1.0, lead))
    return Traffic(ledger=ledger, flows=(flow,))


def joined(own: Speed, beside: list[tuple[Companion, Speed]]) -> Speed:
    """The step of all models: their lines in one ledger each, under their roles, and their times added up."""
    ledgers: dict[str, Any] = {name: _all_lines(name, own, beside) for name in ("compute", "optimizer", "offload")}
    speeds = [own, *(speed for _, speed in beside)]
    lines, flows = Ledger(own.compute.size), list[Flow]()
    for role, traffic in [("", own.traffic), *((companion.role, speed.traffic) for companion, speed in beside)]:
        flows += [replace(flow, line=flow.line + len(lines.lines)) for flow in traffic.flows]
        _take(lines, traffic.ledger, role)
    totals = ("compute_s", "exposed_communication_s", "optimizer_s", "offload_s", "step_s")
    return replace(
        own, **ledgers, traffic=Traffic(ledger=lines, flows=tuple(flows)), exposed=sum((s.exposed for s in speeds), ()),
        **{name: sum(getattr(s, name) for s in speeds) for name in totals},
    )  # fmt: skip


def _all_lines(name: str, own: Speed, beside: list[tuple[Companion, Speed]]) -> Ledger:
    ledger = Ledger(own.compute.size)
    _take(ledger, getattr(own, name), "")
    for companion, speed in beside:
        _take(ledger, getattr(speed, name), companion.role)
    return ledger


def _take(into: Ledger, ledger: Ledger, role: str) -> None:
    for line in ledger.lines:
        into.keep(line.under(role))
