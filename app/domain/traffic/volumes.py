"""What each strategy really sends: bytes per optimizer step and GPU, by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share
from app.domain.traffic.collectives import collective_s, ring_bytes, spans_nodes


@term(
    title="parameter all-gather",
    equation="elements × bytes_each × (ranks - 1) / ranks × times",
    source="torch-fsdp2",
    exactness="derived",
    changes_it="accumulate more per step; keep parameters gathered; smaller shard groups",
)
def gather_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Bytes each GPU sends so that every rank sees whole weights.

    Equation: P · bytes · (n − 1)/n · gathers per step. Bytes per GPU and step.

    Example: ZeRO-3's two gathers of 7.5e9 bf16 weights over 64 ranks.
        >>> gather_sent_bytes(7.5e9, 2, 64, 2) / 1e9
        29.53125
    """
    return ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="gradient reduce-scatter",
    equation="elements × bytes_each × (ranks - 1) / ranks × times",
    source="torch-fsdp2",
    exactness="derived",
    changes_it="a lower-precision reduce dtype; fewer micro-steps",
)
def reduce_scatter_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Bytes each GPU sends to leave every rank its shard of the summed gradients. Bytes per GPU and step."""
    return ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="gradient all-reduce",
    equation="2 × elements × bytes_each × (ranks - 1) / ranks × times",
    source="ds-stage12",
    exactness="derived",
    changes_it="ZeRO-1 reduces once a step, ZeRO-2 every micro-step",
)
def all_reduce_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Bytes each GPU sends in ring all-reduces of the gradients; DeepSpeed's stages 1 and 2 issue these too. Bytes per GPU and step."""
    return 2 * ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="parameter all-gather after the step",
    equation="elements × bytes_each × (ranks - 1) / ranks × times",
    source="ds-stage12",
    exactness="derived",
)
def step_gather_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """ZeRO-1 and 2 hand the updated weights round after each optimizer step. Bytes per GPU and step."""
    return ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="gradient all-reduce across replicas",
    equation="2 × elements × bytes_each × (ranks - 1) / ranks × times",
    source="torch-fsdp2",
    exactness="derived",
)
def replica_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Hybrid sharding averages gradient shards between shard groups. Bytes per GPU and step."""
    return 2 * ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="tensor-parallel all-reduce",
    equation="2 × elements × bytes_each × (ranks - 1) / ranks × times",
    source="megatron",
    exactness="derived",
)
def tensor_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Activations summed twice a block forward and twice backward. Bytes per GPU and step."""
    return 2 * ring_bytes(elements * bytes_each, ranks) * times


@term(title="pipeline send and receive", equation="elements × bytes_each × times × (ranks > 1)", source="megatron", exactness="derived")
def pipeline_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Block outputs forward and their gradients backward between stages. Bytes per GPU and step."""
    return elements * bytes_each * times * (ranks > 1)


@term(
    title="sequence-parallel all-to-all",
    equation="elements × bytes_each × (ranks - 1) / ranks × times",
    source="ds-engine",
    exactness="derived",
)
def sequence_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Ulysses exchanges queries, keys, values and outputs between sequence and head splits. Bytes per GPU and step."""
    return ring_bytes(elements * bytes_each, ranks) * times


@term(title="expert all-to-all", equation="elements × bytes_each × (ranks - 1) / ranks × times", source="ds-engine", exactness="derived")
def expert_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Tokens sent to their experts and back, forward and backward. Bytes per GPU and step."""
    return ring_bytes(elements * bytes_each, ranks) * times


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One collective of the step for every candidate: who takes part, how long it takes and what can hide it.

    ``hidden_by`` is ``micro_step`` (compute of all micro-steps), ``last_backward`` (backward of the last one) or ``nothing``.
    """

    line: int
    ranks: Array
    spans: Array
    seconds: Array
    hidden_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All flows with their ledger of bytes per step and GPU."""

    ledger: Ledger
    flows: tuple[Flow, ...]


_DDP_BUCKET = 25 * 2**20 / 4
"""Elements of one DDP bucket: 25 MiB of fp32 gradients."""


class _Book:
    """Collects flows: evaluates a term, prices it on its group's links and remembers what can hide it."""

    def __init__(self, setup: TrainingSetup, columns: Columns) -> None:
        self.node, self.ledger, self.flows = setup.pool.node, Ledger(len(columns)), list[Flow]()

    def add(self, function: object, hidden_by: str, group: tuple[Array, Array], calls: Array, **arguments: Array) -> None:
        ranks, stride = group
        sent = self.ledger.add(function, "traffic", "step", {}, ranks=ranks, **arguments)  # type: ignore[arg-type]
        seconds = np.where(sent > 0, collective_s(sent, calls, ranks, stride, self.node), 0.0)
        self.flows.append(
            Flow(
                line=len(self.ledger.lines) - 1,
                ranks=ranks,
                spans=spans_nodes(ranks, stride, self.node),
                seconds=seconds,
                hidden_by=hidden_by,
            )
        )


def evaluate_traffic(setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Traffic:
    """Bytes and seconds of every collective of one optimizer step, for every candidate."""
    book = _Book(setup, columns)
    _add_gathers(book, numbers, columns, share)
    _add_reductions(book, columns, share)
    _add_model_parallel(book, setup, columns, share)
    return Traffic(ledger=book.ledger, flows=tuple(book.flows))


def _add_gathers(book: _Book, numbers: Numbers, columns: Columns, share: Share) -> None:
    """Parameters gathered for compute: the first time over all ranks, again over the hpZ group where there is one."""
    c, whole, units = columns, share.inside + share.outside, share.layers + 2
    width = np.where(numbers.frozen > 0, c.frozen_bytes, c.compute_bytes)
    # FSDP2's root group stays gathered from forward to backward; ZeRO-3 keeps what is reused within its distance.
    kept = np.where(c.fsdp2 > 0, share.outside, np.minimum(whole, c.reuse / 2))
    micro = c.grad_accum * (c.gathers > 0)
    first = np.where(c.hpz > 1, 1, micro) * (c.gathers > 0)
    again = (c.gathers - 1) * (whole - kept) * micro + np.where(c.hpz > 1, whole * (micro - first), 0)
    near = (np.where(c.hpz > 1, c.hpz, c.param_ranks), c.tp)
    ones = np.ones(len(c))
    book.add(gather_sent_bytes, "micro_step", (c.param_ranks, c.tp), units * first, elements=whole, bytes_each=width, times=first)
    book.add(gather_sent_bytes, "micro_step", near, units * micro, elements=again, bytes_each=width, times=ones)


def _add_reductions(book: _Book, columns: Columns, share: Share) -> None:
    """Gradients combined over the ranks that share them, and what follows the step."""
    c, trained, units = columns, share.trainable, share.layers + 2
    group, ones = (c.zero_ranks, c.tp), np.ones(len(c))
    times = np.where(c.reduces_each > 0, c.grad_accum, 1)
    scattered = trained * ((c.all_reduce == 0) & (c.grad_ranks > 1))
    reduced = trained * ((c.all_reduce > 0) & (c.zero_ranks > 1))
    buckets = np.ceil(trained / np.where(c.deepspeed > 0, c.bucket, _DDP_BUCKET))
    each, once = reduced * (c.reduces_each > 0), reduced * (c.reduces_each == 0)
    after = trained * ((c.gathers_after > 0) & (c.zero_ranks > 1))
    replicated = trained / c.group * ((c.replicas > 1) & (c.fsdp2 > 0))
    wire = {"bytes_each": c.reduce_bytes}
    book.add(reduce_scatter_sent_bytes, "micro_step", (c.grad_ranks, c.tp), units * times, elements=scattered, times=times, **wire)
    book.add(all_reduce_sent_bytes, "micro_step", group, buckets * times, elements=each, times=times, **wire)
    book.add(all_reduce_sent_bytes, "last_backward", group, buckets, elements=once, times=ones, **wire)
    book.add(step_gather_sent_bytes, "nothing", group, ones, elements=after, bytes_each=c.param_bytes, times=ones)
    across = (np.maximum(1, c.replicas), c.group * c.tp)
    book.add(replica_sent_bytes, "last_backward", across, units, elements=replicated, times=ones, **wire)


def _add_model_parallel(book: _Book, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    c, model = columns, setup.model
    residual = share.tokens * model.hidden_size
    passes = np.where(c.checkpointing == 2, 6.0, 4.0) * c.grad_accum
    ones = np.ones(len(c))
    book.add(
        tensor_sent_bytes,
        "nothing",
        (c.tp, ones),
        share.layers * passes * (c.tp > 1),
        elements=residual * (c.tp > 1),
        bytes_each=c.compute_bytes,
        times=share.layers * passes,
    )
    book.add(pipeline_sent_bytes, "nothing", (c.pp, c.world_size / c.pp), 2 * c.grad_accum * (c.pp > 1), elements=residual / c.tp,
             bytes_each=c.compute_bytes, times=2.0 * c.grad_accum)  # fmt: skip
    attention = model.main_block.attention
    width = 2 * attention.head_dim * (attention.num_heads + attention.num_kv_heads) if attention else 0
    book.add(
        sequence_sent_bytes,
        "nothing",
        (c.sp, c.tp),
        8.0 * share.layers * c.grad_accum * (c.sp > 1),
        elements=share.tokens * width * (c.sp > 1),
        bytes_each=c.compute_bytes,
        times=2.0 * share.layers * c.grad_accum,
    )
    moe = model.main_block.moe
    if moe:
        routed = residual * moe.experts_per_token * (c.ep > 1)
        book.add(
            expert_sent_bytes,
            "nothing",
            (c.ep, c.tp),
            4.0 * share.layers * c.grad_accum * (c.ep > 1),
            elements=routed,
            bytes_each=c.compute_bytes,
            times=4.0 * share.layers * c.grad_accum,
        )
