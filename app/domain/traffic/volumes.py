"""What each strategy really sends: bytes per optimizer step and GPU, by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share
from app.domain.traffic.collectives import Group, ring_bytes
from app.domain.traffic.muon import matrices_of, muon_sent_bytes
from app.domain.traffic.quantised import INT4_BYTES, INT8_BYTES, far_exchange_bytes, near_exchange_bytes


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
    exactness="exact",
    changes_it="a lower-precision reduce dtype; fewer micro-steps",
)
def reduce_scatter_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Bytes each GPU sends to leave every rank its shard of the summed gradients. Bytes per GPU and step."""
    return ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="gradient all-reduce",
    equation="2 × elements × bytes_each × (ranks - 1) / ranks × times",
    source="ds-stage12",
    exactness="exact",
    changes_it="ZeRO-1 reduces once a step, ZeRO-2 every micro-step",
)
def all_reduce_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Bytes each GPU sends in ring all-reduces of the gradients; DeepSpeed's stages 1 and 2 issue these too. Bytes per GPU and step."""
    return 2 * ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="parameter all-gather after the step",
    equation="elements × bytes_each × (ranks - 1) / ranks × times",
    source="ds-stage12",
    exactness="exact",
)
def step_gather_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """ZeRO-1 and 2 hand the updated weights round after each optimizer step. Bytes per GPU and step."""
    return ring_bytes(elements * bytes_each, ranks) * times


@term(
    title="gradient all-reduce across replicas",
    equation="2 × elements × bytes_each × (ranks - 1) / ranks × times",
    source="torch-fsdp2",
    exactness="exact",
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
    title="context-parallel ring",
    equation="elements × bytes_each × (ranks - 1) × times",
    source="torchtitan",
    exactness="derived",
)
def context_sent_bytes(elements: Array, bytes_each: Array, ranks: Array, times: Array) -> Array:
    """Keys and values go round every rank of a context-parallel group; backward takes their gradients along. Bytes per GPU and step."""
    sent: Array = elements * bytes_each * (ranks - 1) * times
    return sent


@term(
    title="sequence-parallel all-to-all",
    equation="elements × bytes_each × (ranks - 1) / ranks × times",
    source="ulysses",
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

    Attributes:
        line: its line in the ledger.
        ranks, spans: size of its group, and whether that leaves the node.
        seconds: of all its calls in a step.
        hidden_by: ``forward`` or ``backward`` of every micro-step, ``last_backward`` (that of the last one) or ``nothing``.
        lead_frac: share that nothing runs beside: the first gather of a forward, the last reduction of a backward.
    """

    line: int
    ranks: Array
    spans: Array
    seconds: Array
    hidden_by: str
    lead_frac: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All flows with their ledger of bytes per step and GPU."""

    ledger: Ledger
    flows: tuple[Flow, ...]


_DDP_BUCKET = 25 * 2**20 / 4
"""Elements of one DDP bucket: 25 MiB of fp32 gradients."""
_STAGE0_BUCKET = 5e8
"""Elements of one bucket of DeepSpeed's stage 0, fixed."""


class _Book:
    """Collects flows: evaluates a term, prices it on its group's links and remembers what can hide it."""

    def __init__(self, setup: TrainingSetup, columns: Columns) -> None:
        self.node, self.ledger, self.flows = setup.pool.node, Ledger(len(columns)), list[Flow]()
        self.ones = np.ones(len(columns))

    def group(self, ranks: Array, stride: Array) -> Group:
        """A group on this pool's machines."""
        return Group(ranks, stride, self.node)

    def add(self, function: object, hidden_by: str, group: Group, calls: Array, **arguments: Any) -> None:
        """Add one flow, unless no candidate has it.

        ``lead`` is its share that nothing hides and ``kind`` the collective's, a ring unless said.
        """
        if not (np.any(arguments["elements"]) and np.any(arguments.get("times", 1))):
            return
        lead, kind = arguments.pop("lead", 0.0), arguments.pop("kind", "ring")
        sent = self.ledger.add(function, "traffic", "step", {}, ranks=group.ranks, **arguments)  # type: ignore[arg-type]
        self.flows.append(
            Flow(
                line=len(self.ledger.lines) - 1,
                ranks=group.ranks,
                spans=group.spans_nodes,
                seconds=np.where(sent > 0, group.collective_s(sent, calls, kind), 0.0),
                hidden_by=hidden_by,
                lead_frac=np.minimum(1.0, np.maximum(0.0, lead)),
            )
        )


def evaluate_traffic(setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Traffic:
    """Bytes and seconds of every collective of one optimizer step, for every candidate."""
    book = _Book(setup, columns)
    _add_gathers(book, setup, numbers, columns, share)
    _add_scatters(book, setup, columns, share)
    _add_all_reduces(book, setup, columns, share)
    _add_tensor_and_pipeline(book, setup, columns, share)
    _add_sequence_and_expert(book, setup, columns, share)
    return Traffic(ledger=book.ledger, flows=tuple(book.flows))


def gathered_again(setup: TrainingSetup, columns: Columns, share: Share) -> Array:
    """Elements gathered a second time for the backward of each micro-step.

    Equation: FSDP2: P without the head, which stays gathered (none where forward's copy is kept); ZeRO-3: P − min(P, D/2), D being
    max_reuse_distance, and with D = 0 and checkpointing each block's matrices but the last once more: its recompute fetches them, and
    backward begins with the last.

    Assumes: at ZeRO-3, that nothing gathered ahead is still there: an upper bound, for what the prefetch bucket has passed is kept.

    Source: DeepSpeed's ``__params_to_release``, counted with D = 0 and no prefetch (tests/verify). fully_shard gathers in backward
    whatever is resharded after forward.
    """
    c, n, whole = columns, setup.numbers, share.inside + share.outside
    head = 0.0 if setup.model.tied_embeddings else 1.0 - n.embedding / max(1, n.outside)
    kept = np.where(c.fsdp2 > 0, share.outside * head, np.minimum(whole, c.reuse / 2))
    matrices = [w.numel // w.copies for w in setup.model.main_block.weights if len(w.shape) > 1]
    last = matrices[-1] / n.block if matrices else 0.0
    recompute = share.inside * (1 - last) * ((c.deepspeed > 0) & (c.reuse == 0) & (c.checkpointing == 2))
    again: Array = np.maximum(0, c.gathers - 1) * (whole - kept + recompute) * (1 - persistent_frac(setup, c))
    return again


def _add_gathers(book: _Book, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> None:
    """Parameters gathered for compute: the first time over all ranks, again over the hpZ group where there is one."""
    c, whole = columns, share.inside + share.outside
    if not c.gathers.any():
        return
    width = np.where(c.qwz > 0, INT8_BYTES, np.where(numbers.frozen > 0, c.frozen_bytes, c.compute_bytes))
    micro, apart = c.grad_accum * (c.gathers > 0), c.hpz > 1
    first, everyone = np.where(apart, 1, micro) * (c.gathers > 0), book.group(c.param_ranks, c.tp)
    again = gathered_again(setup, c, share)
    # FSDP2 gathers a block at a time, ZeRO-3 what its prefetch bucket holds; a block's matrices one by one at most.
    units = np.where(c.fsdp2 > 0, share.layers + 2, np.maximum(share.layers, whole / np.maximum(1, c.prefetch)))
    lead, near, later = (share.outside / 2 + share.block) / np.maximum(1, whole), everyone, (micro - first) * apart
    kept = whole * persistent_frac(setup, c)
    fresh = whole - kept * (1 - 1 / np.maximum(1, first))
    book.add(gather_sent_bytes, "forward", everyone, units * first, lead=lead, elements=fresh, bytes_each=width, times=first)
    if apart.any():
        near = book.group(np.where(apart, c.hpz, c.param_ranks), c.tp)
        book.add(gather_sent_bytes, "forward", near, units * later, lead=lead, elements=whole - kept, bytes_each=width, times=later)
    book.add(gather_sent_bytes, "backward", near, units * micro, elements=again, bytes_each=width, times=micro)
    if numbers.adapter:
        # The factors are gathered with the blocks they belong to, in the compute dtype.
        shown = share.trainable * np.where(c.fsdp2 > 0, np.maximum(0, c.gathers - 1), again / np.maximum(1, whole))
        adapters: dict[str, Any] = {"bytes_each": c.compute_bytes, "lead": lead}
        book.add(gather_sent_bytes, "forward", everyone, units * first, elements=share.trainable, times=first, **adapters)
        book.add(gather_sent_bytes, "forward", near, units * later, elements=share.trainable, times=later, **adapters)
        book.add(gather_sent_bytes, "backward", near, units * micro, elements=shown, times=micro, **adapters)


def persistent_frac(setup: TrainingSetup, columns: Columns) -> Array:
    """Share of the parameters in tensors up to the persistence threshold, which ZeRO-3 gathers once a step and then keeps whole."""
    sizes, shares = setup.once("sizes of tensors", lambda: _sizes_of_tensors(setup))
    frac: Array = shares[np.searchsorted(sizes, columns.persistence, side="right")] * columns.zero3
    return frac


def _sizes_of_tensors(setup: TrainingSetup) -> tuple[Array, Array]:
    """Elements of each tensor, ascending, and the share of all elements that the first k of them hold."""
    weights = [(w, s.owned) for s in setup.model.stacks for w in s.block.weights] + [(w, 1) for w in setup.model.weights]
    pairs = sorted((w.numel // w.copies, w.numel * owned) for w, owned in weights)
    held = np.cumsum([0, *(numel for _, numel in pairs)])
    return np.array([size for size, _ in pairs]), held / held[-1]


def _add_scatters(book: _Book, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Gradients scattered in every micro-step, under qgZ by exchanges in the node and then across nodes; and hybrid sharding's average."""
    c, trained, times = columns, share.trainable, columns.grad_accum
    scatters = (c.all_reduce == 0) & (c.grad_ranks > 1)
    replicates = (c.replicas > 1) & (c.fsdp2 > 0)
    if not (scatters.any() or replicates.any()):
        return
    group = book.group(c.grad_ranks, c.tp)
    two_hops = (c.qgz > 0) & (c.grad_ranks > group.local)
    units = np.where(c.fsdp2 > 0, share.layers + 2, np.maximum(1, trained / np.maximum(1, c.bucket)))
    lead = np.where(c.fsdp2 > 0, (share.outside / 2 + share.block) / np.maximum(1, share.inside + share.outside), 1 / units)
    summed = _add_muon(book, setup, columns, share) if setup.recipe.optimizer == "muon" else 0.0
    book.add(reduce_scatter_sent_bytes, "backward", group, units * times, lead=lead, times=times, bytes_each=c.reduce_bytes,
             elements=trained * (scatters & ~two_hops) - summed)  # fmt: skip
    if two_hops.any():
        sent = trained * (scatters & two_hops)
        quantised = {"elements": sent, "bytes_each": INT4_BYTES, "times": times, "lead": lead, "kind": "exchange"}
        near = book.group(group.local, c.tp)
        far = book.group(np.maximum(1, c.grad_ranks / group.local), book.node.gpus_per_node * book.ones)
        book.add(near_exchange_bytes, "backward", near, units * times, **quantised)
        book.add(far_exchange_bytes, "backward", far, units * times, local=group.local, **quantised)
    if replicates.any():
        replicas = book.group(np.maximum(1, c.replicas), c.group * c.tp)
        book.add(replica_sent_bytes, "backward", replicas, units * times, lead=lead, kind="all_reduce", times=times,
                 elements=trained / c.group * replicates, bytes_each=c.reduce_bytes)  # fmt: skip


def _add_muon(book: _Book, setup: TrainingSetup, columns: Columns, share: Share) -> Array:
    """What Muon sends at stage 3, whose file switches reduce_scatter off; returns the elements that are all-reduced instead."""
    c, found = columns, matrices_of(setup, columns)
    muon = found.rounds > 0
    summed: Array = share.trainable * (1 - found.scattered_frac) * muon
    group, calls = book.group(c.grad_ranks, c.tp), np.maximum(1, summed / np.maximum(1, c.bucket)) * c.grad_accum
    book.add(all_reduce_sent_bytes, "backward", group, calls, lead=c.grad_accum / calls, kind="all_reduce", elements=summed,
             times=c.grad_accum, bytes_each=c.reduce_bytes)  # fmt: skip
    part, dealt = share.blocks_frac / c.tp, found.dealt * (c.offload_optimizer == 0)
    book.add(muon_sent_bytes, "nothing", group, 4 * found.rounds * muon, elements=found.numel * part, dealt=dealt * part,
             bytes_each=c.reduce_bytes)  # fmt: skip
    return summed


def _add_all_reduces(book: _Book, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Whole gradients combined, in every micro-step or once a step, and the parameters handed round after the step."""
    c, ones = columns, book.ones
    reduces = (c.all_reduce > 0) & (c.zero_ranks > 1)
    if not reduces.any():
        return
    reduced, group = share.trainable * reduces, book.group(c.zero_ranks, c.tp)
    stage0 = (c.deepspeed > 0) & (c.gathers_after == 0)
    bucket = np.where(c.deepspeed > 0, np.where(stage0, _STAGE0_BUCKET, c.bucket), _DDP_BUCKET)
    buckets = np.ceil(np.maximum(1, share.trainable / np.maximum(1, bucket)))
    # Stage 0 and BF16_Optimizer (fp32 accumulation at stage 1) reduce when backward is over; stages 1 and 2 beside it with overlap_comm.
    after_backward = stage0 | (
        (c.gathers_after > 0) & (c.reduces_each == 0) & (c.grad_bytes > c.compute_bytes) & (c.offload_optimizer == 0)
    )
    blocked = (c.deepspeed > 0) & ((c.overlap_comm == 0) | after_backward)
    shared = {"bytes_each": c.reduce_bytes, "kind": "all_reduce", "lead": np.where(blocked, 1.0, 1 / buckets)}
    each, once = reduced * (c.reduces_each > 0), reduced * (c.reduces_each == 0)
    book.add(all_reduce_sent_bytes, "backward", group, buckets * c.grad_accum, elements=each, times=c.grad_accum, **shared)
    book.add(all_reduce_sent_bytes, "last_backward", group, buckets, elements=once, times=ones, **shared)
    after = share.trainable * ((c.gathers_after > 0) & (c.zero_ranks > 1))
    # DeepSpeed gathers a flat buffer, ZeroRedundancyOptimizer broadcasts each tensor from the rank that stepped it.
    tensors = len(setup.model.weights) + sum(w.copies * s.owned for s in setup.model.stacks for w in s.block.weights)
    calls = np.where(c.ddp > 0, float(tensors), 1.0)
    book.add(step_gather_sent_bytes, "nothing", group, calls, elements=after, bytes_each=c.param_bytes, times=ones)


def _add_tensor_and_pipeline(book: _Book, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Activations summed over tensor ranks, and handed from stage to stage."""
    c, residual = columns, share.tokens * setup.model.hidden_size
    if (c.tp > 1).any():
        times, group = np.where(c.checkpointing == 2, 6.0, 4.0) * c.grad_accum * setup.model.num_layers / c.pp, book.group(c.tp, book.ones)
        # A sequence-parallel plan gathers and scatters instead of summing: the same bytes, in twice as many calls, not in the switch.
        for summed, kind, calls in ((c.fsdp2 == 0, "all_reduce", 1), (c.fsdp2 > 0, "ring", 2)):
            used = (c.tp > 1) & summed
            book.add(tensor_sent_bytes, "nothing", group, calls * times * used, kind=kind, elements=residual * used,
                     bytes_each=c.compute_bytes, times=times)  # fmt: skip
    if (c.pp > 1).any():
        book.add(pipeline_sent_bytes, "nothing", book.group(c.pp, c.world_size / c.pp), 2 * c.grad_accum * (c.pp > 1), kind="exchange",
                 elements=residual / c.tp * (c.pp > 1), bytes_each=c.compute_bytes, times=2.0 * c.grad_accum)  # fmt: skip


def _add_sequence_and_expert(book: _Book, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Sequences exchanged for heads (DeepSpeed) or keys and values sent round (FSDP2), and tokens sent to their experts."""
    c, model = columns, setup.model
    layers, again = model.num_layers / c.pp, (c.checkpointing == 2) * 1.0
    attention, moe = model.main_block.attention, model.main_block.moe
    if attention and (c.sp > 1).any():
        heads, used, group = attention.head_dim * share.tokens, c.sp > 1, book.group(c.sp, c.tp)
        times = (2.0 + again) * layers * c.grad_accum
        width = 2.0 * (attention.num_heads + attention.num_kv_heads)
        book.add(sequence_sent_bytes, "nothing", group, 4 * times, kind="exchange", elements=heads * width * used * (c.fsdp2 == 0),
                 bytes_each=c.compute_bytes, times=times)  # fmt: skip
        round_trips = (3.0 + again) * layers * c.grad_accum
        book.add(context_sent_bytes, "nothing", group, round_trips, elements=heads * 2.0 * attention.num_kv_heads * used * (c.fsdp2 > 0),
                 bytes_each=c.compute_bytes, times=round_trips)  # fmt: skip
    if moe and (c.ep > 1).any():
        times = (4.0 + 2.0 * again) * layers * c.grad_accum
        routed = share.tokens * model.hidden_size * moe.experts_per_token * (c.ep > 1)
        book.add(expert_sent_bytes, "nothing", book.group(c.ep, c.tp), times * (c.ep > 1), kind="exchange", elements=routed,
                 bytes_each=c.compute_bytes, times=times)  # fmt: skip
