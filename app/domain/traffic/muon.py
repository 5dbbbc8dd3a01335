"""Muon under ZeRO-3: it orthogonalises whole matrices, so gradients are all-reduced and gathered, and momenta with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from app.domain.cards import term
from app.domain.recipe.optimizer import is_hidden_matrix
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.traffic.collectives import ring_bytes


@term(
    title="Muon's gradients and momenta gathered",
    equation="2 × (elements + dealt) × bytes_each × (ranks - 1) / ranks",
    source="ds-stage3",
    exactness="exact",
    changes_it="fewer ranks, for matrices are dealt out rank by rank; AdamW needs none of it",
)
def muon_sent_bytes(elements: Array, dealt: Array, bytes_each: Array, ranks: Array) -> Array:
    """Bytes each GPU sends to orthogonalise the matrices once a step.

    Equation: 2 · (P + P_dealt) · bytes · (n − 1)/n. Gradient and momentum are gathered from their shards; each rank then takes one
    matrix of a round, and hands its update and momentum round in messages as long as the round's longest.

    Args:
        elements: P, of the matrices Muon steps.
        dealt: P_dealt, the same with every round of n matrices filled up to n times its longest.
        bytes_each: width of the reduced gradients, which momenta have too.
        ranks: n.

    Returns:
        Bytes per GPU and step.

    Source: DeepSpeed 0.19.8 ``_apply_muon_to_accumulated_grads`` and ``_muon_update_sub_group``.

    Example: seven matrices of 16 Mi elements on eight ranks fill one round of eight.
        >>> muon_sent_bytes(7 * 2**24, 8 * 2**24, 2, 8) / 2**20
        840.0
    """
    return 2 * ring_bytes((elements + dealt) * bytes_each, ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """Elements of the model that Muon at stage 3 treats apart, an entry a candidate.

    Attributes:
        scattered_frac: share of all parameters in tensors longer than a bucket, whose gradients are still reduce-scattered.
        numel: of the matrices Muon steps; dealt: with its rounds filled up; rounds: how many there are.
    """

    scattered_frac: Array
    numel: Array
    dealt: Array
    rounds: Array


def matrices_of(setup: TrainingSetup, columns: Columns) -> Matrices:
    """Count them for each candidate's ranks and bucket; all zero where Muon is not at stage 3."""
    muon = columns.zero3 & (columns.param_ranks > 1) if setup.recipe.optimizer == "muon" else np.zeros(columns.row.shape, dtype=bool)
    out = {name: np.zeros(columns.row.shape) for name in ("scattered_frac", "numel", "dealt", "rounds")}
    ranks, buckets = (np.broadcast_to(column, columns.row.shape) for column in (columns.param_ranks, columns.bucket))
    for pair in set(zip(ranks[muon].tolist(), buckets[muon].tolist(), strict=True)):
        counted = setup.once(("muon", *pair), partial(_counted, setup, *(int(number) for number in pair)))
        for name, value in zip(out, counted, strict=True):
            out[name] += value * (muon & (ranks == pair[0]) & (buckets == pair[1]))
    return Matrices(**out)


def _counted(setup: TrainingSetup, ranks: int, bucket: int) -> tuple[float, float, float, float]:
    """The four figures of ``Matrices`` for one number of ranks and one bucket.

    Assumes: no round is cut short by the end of a sub-group.
    """
    inside = [weight for stack in setup.model.stacks for _ in range(stack.owned) for weight in stack.block.weights]
    every = [(w.numel // w.copies, w.copies) for w in (*inside, *setup.model.weights)]
    sizes = [w.numel // w.copies for w in inside if is_hidden_matrix(w) for _ in range(w.copies)]
    dealt = rounds = 0
    for chunk in _chunks(sizes, bucket):
        for start in range(0, len(chunk), ranks):
            dealt += ranks * max(chunk[start : start + ranks])
            rounds += 1
    total = sum(size * copies for size, copies in every)
    long = sum(size * copies for size, copies in every if size > bucket)
    return long / total, float(sum(sizes)), float(dealt), float(rounds)


def _chunks(sizes: list[int], bucket: int) -> list[list[int]]:
    """Runs of matrices that a bucket holds, one at least.

    Example:
        >>> _chunks([4, 4, 9, 2], 8)
        [[4, 4], [9], [2]]
    """
    out: list[list[int]] = []
    held = 0
    for size in sizes:
        if not out or held + size > bucket:
            out.append([])
            held = 0
        out[-1].append(size)
        held += size
    return out
