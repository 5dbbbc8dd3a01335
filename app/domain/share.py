"""What one GPU holds of the model before ZeRO or FSDP divides it: tensor, pipeline and expert parallelism applied.

Pipeline stages differ, so a share is of one stage. Blocks are dealt out as evenly as they go, the first stages taking one more;
the first stage has the embedding as well, the last one the final norm, the head and the loss. A tied table is on both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.model.architecture import Weight
from app.domain.setup import Array, Columns, Numbers, TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Elements of one GPU's part of the model, whole (before sharding), on one pipeline stage.

    Attributes:
        trainable, frozen: parameters of the rank's part.
        inside, outside: parameters in and out of the blocks.
        block: parameters of one block with FSDP2's padding; block_numel: without; layers: blocks of the stage.
        head, largest, largest_trained: elements of the output head, of the largest tensor and of the largest trained one.
        tokens: tokens of one micro-batch this rank works on.
        in_flight: micro-batches whose activations the stage holds at once.
        stage: number of the stage, from 0; blocks_frac: its share of all blocks; has_loss: 1 where the loss is computed on it.
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
    stage: Array
    blocks_frac: Array
    has_loss: Array


def share_of(setup: TrainingSetup, numbers: Numbers, columns: Columns, stage: int = 0) -> Share:
    """Divide the model's counts over tensor, pipeline and expert ranks, for one stage of the pipeline."""
    c, n = columns, numbers
    stages = np.minimum(stage, c.pp - 1)
    layers = stage_layers(n.num_layers, c.pp, stages)
    blocks_frac, is_last = layers / n.num_layers, stages == c.pp - 1
    padding = dim0_padding(setup, columns)
    dense, expert = (n.inside - n.expert) * padding.inside, n.expert * padding.inside
    inside = dense * blocks_frac / c.tp + expert * blocks_frac / (c.tp * c.ep)
    outside = _outside(n, stages, c.pp) * padding.outside / c.tp
    whole = inside + outside
    expert_share = n.expert / max(1, n.inside)
    block_numel = n.block * ((1 - expert_share) + expert_share / c.ep) / c.tp
    return Share(
        trainable=n.adapter * blocks_frac / c.tp if n.adapter else whole * n.trainable_frac,
        frozen=whole if n.adapter else whole * (1 - n.trainable_frac),
        inside=inside, outside=outside, block=block_numel * padding.inside, block_numel=block_numel,
        layers=layers, head=n.head * is_last / c.tp, largest=n.largest_tensor / c.tp,
        largest_trained=n.largest_trained / c.tp,
        tokens=c.micro_batch * setup.recipe.seq_len / c.sp,
        in_flight=micro_batches_in_flight(c.pp, stages, c.grad_accum),
        stage=stages, blocks_frac=blocks_frac, has_loss=is_last * 1.0,
    )  # fmt: skip


def stage_layers(num_layers: int, stages: Array, stage: Array) -> Array:
    """Blocks of one stage: as many as of any other, or one more on the first stages.

    Equation: ⌊L / p⌋ + (stage < L mod p)

    Source: DeepSpeed runtime/utils.py, ``partition_uniform``.

    Example: 60 blocks over 16 stages: four on the first twelve, three on the rest.
        >>> [int(stage_layers(60, np.array(16), np.array(k))) for k in (0, 11, 12, 15)]
        [4, 4, 3, 3]
    """
    layers: Array = num_layers // stages + (stage < num_layers % stages)
    return layers


def micro_batches_in_flight(stages: Array, stage: Array, grad_accum: Array) -> Array:
    """Micro-batches a stage has run forward and not yet backward: the first of p stages holds p of them, the last one.

    Equation: min(p − stage, grad_accum), under one forward, one backward (1F1B).

    Source: Narayanan et al., section 2.2.

    Example:
        >>> [int(micro_batches_in_flight(np.array(8), np.array(k), np.array(4))) for k in (0, 6, 7)]
        [4, 2, 1]
    """
    count: Array = np.minimum(stages - stage, grad_accum)
    return count


def _outside(numbers: Numbers, stage: Array, stages: Array) -> Array:
    """Parameters outside the blocks: the embedding on the first stage, norm and head (or the tied table again) on the last."""
    n, rest = numbers, numbers.outside - numbers.embedding
    tied = n.head if rest < n.head else 0
    first, last = np.where(stage == 0, n.embedding, 0), np.where(stage == stages - 1, rest + tied, 0)
    part: Array = np.where(stages > 1, first + last, n.outside)
    return part


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
