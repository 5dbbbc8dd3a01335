"""What one GPU holds of the model before ZeRO or FSDP divides it: tensor, pipeline and expert parallelism applied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.model.architecture import Weight
from app.domain.setup import Array, Columns, Numbers, TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Elements of one GPU's part of the model, whole (before sharding), on the fullest pipeline stage.

    Attributes:
        trainable, frozen: parameters of the rank's part.
        inside, outside: parameters in and out of the blocks.
        block: parameters of one block with FSDP2's padding; block_numel: without; layers: blocks of the stage.
        head, largest, largest_trained: elements of the output head, of the largest tensor and of the largest trained one.
        tokens: tokens of one micro-batch this rank works on.
        in_flight: micro-batches whose activations the first stage holds at once.
    """

    trainable: Array
    frozen: Array
    inside: Array
    outside: Array
    block: Array
    block_numel: Array
    layers: Array
    head: Array
    largest: Array
    largest_trained: Array
    tokens: Array
    in_flight: Array


def share_of(setup: TrainingSetup, numbers: Numbers, columns: Columns) -> Share:
    """Divide the model's counts over tensor, pipeline and expert ranks."""
    c, n = columns, numbers
    padding = dim0_padding(setup, columns)
    dense, expert = (n.inside - n.expert) * padding.inside, n.expert * padding.inside
    inside = dense / (c.tp * c.pp) + expert / (c.tp * c.pp * c.ep)
    # The first stage holds the embeddings and the last the head: the fullest has the larger of the two.
    outside = np.where(c.pp > 1, max(n.embedding, n.head, n.outside - n.embedding), n.outside) * padding.outside / c.tp
    whole = inside + outside
    expert_share = n.expert / max(1, n.inside)
    block_numel = n.block * ((1 - expert_share) + expert_share / c.ep) / c.tp
    return Share(
        trainable=n.adapter / (c.tp * c.pp) if n.adapter else whole * n.trainable_frac,
        frozen=whole if n.adapter else whole * (1 - n.trainable_frac),
        inside=inside, outside=outside, block=block_numel * padding.inside, block_numel=block_numel,
        layers=np.ceil(n.num_layers / c.pp), head=n.head / c.tp, largest=n.largest_tensor / c.tp,
        largest_trained=n.largest_trained / c.tp,
        tokens=c.micro_batch * setup.recipe.seq_len / c.sp,
        in_flight=np.minimum(c.pp, c.grad_accum),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Factors by which FSDP2's padding of every first dim enlarges the parts of the model."""

    inside: Array
    outside: Array


def dim0_padding(setup: TrainingSetup, columns: Columns) -> Padding:
    """FSDP2 pads the first dim of each tensor to a multiple of the shard ranks: 8 experts over 64 ranks take eight times the space.

    Equation: Σ ⌈d0/n⌉·n·rest / Σ d0·rest

    Source: torch fully_shard, ``_init_sharded_param``.
    """
    ranks, inverse = np.unique(np.where(columns.fsdp2 > 0, columns.param_ranks, 1), return_inverse=True)
    inside = [(w, s.owned) for s in setup.model.stacks for w in s.block.weights]
    outside = [(w, 1) for w in setup.model.weights]
    return Padding(
        inside=np.array([_padded(inside, int(n)) for n in ranks])[inverse],
        outside=np.array([_padded(outside, int(n)) for n in ranks])[inverse],
    )


def _padded(weights: list[tuple[Weight, int]], ranks: int) -> float:
    if ranks == 1 or not weights:
        return 1.0
    total = padded = 0
    for weight, owned in weights:
        rows, numel = (weight.shape or (1,))[0], weight.numel * owned
        total += numel
        padded += numel // rows * (-(-rows // ranks) * ranks)
    return padded / total
