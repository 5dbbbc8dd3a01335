"""What one GPU holds of the model before ZeRO or FSDP divides it: tensor, pipeline and expert parallelism applied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.domain.setup import Array, Columns, Numbers, TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Elements of one GPU's part of the model, whole (before sharding), on the fullest pipeline stage.

    Attributes:
        trainable, frozen: parameters of the rank's part.
        inside, outside: parameters in and out of the blocks.
        block: parameters of one block; layers: blocks of the stage.
        head, largest: elements of the output head and of the largest tensor.
        tokens: tokens of one micro-batch this rank works on.
        in_flight: micro-batches whose activations the first stage holds at once.
    """

    trainable: Array
    frozen: Array
    inside: Array
    outside: Array
    block: Array
    layers: Array
    head: Array
    largest: Array
    tokens: Array
    in_flight: Array


def share_of(setup: TrainingSetup, numbers: Numbers, columns: Columns) -> Share:
    """Divide the model's counts over tensor, pipeline and expert ranks."""
    c, n = columns, numbers
    dense, expert = n.inside - n.expert, n.expert
    inside = dense / (c.tp * c.pp) + expert / (c.tp * c.pp * c.ep)
    # The first stage holds the embeddings and the last the head: the fullest has the larger of the two.
    outside = np.where(c.pp > 1, max(n.embedding, n.head, n.outside - n.embedding), n.outside) / c.tp
    whole = inside + outside
    expert_share = expert / max(1, n.inside)
    block = n.block * ((1 - expert_share) + expert_share / c.ep) / c.tp
    return Share(
        trainable=n.adapter / (c.tp * c.pp) if n.adapter else whole * n.trainable_frac,
        frozen=whole if n.adapter else whole * (1 - n.trainable_frac),
        inside=inside, outside=outside, block=block,
        layers=np.ceil(n.num_layers / c.pp), head=n.head / c.tp, largest=n.largest_tensor / c.tp,
        tokens=c.micro_batch * setup.recipe.seq_len / c.sp,
        in_flight=np.minimum(c.pp, c.grad_accum),
    )  # fmt: skip
