"""Memory of the busiest pipeline stage: the first and the last one are evaluated, and the fuller of them counts.

The first stage holds the embedding and the most micro-batches in flight, the last one the head and the loss. Those between them
hold no more blocks than the first, fewer micro-batches and neither end, so none of them can be the busiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce
from typing import TypeVar

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger, Tally, chosen
from app.domain.memory.activations import add_activations
from app.domain.memory.buffers import add_buffers
from app.domain.memory.companions import add_frozen, evaluated, gpu_scope, moments_of
from app.domain.memory.logits import add_logits
from app.domain.memory.moments import FORWARD, IN_BLOCKS, LOSS
from app.domain.memory.states import add_states
from app.domain.memory.tensor import residual_ranks, vocabulary_ranks
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share, share_of

L = TypeVar("L", bound=Tally)

_CLEARLY = 1.01
"""Stages whose peaks differ by less than this need the same."""


@term(title="stage outputs awaiting their gradient", equation="tokens × width × bytes_each × in_flight / ranks", source="ds-pipe",
      exactness="derived", changes_it="micro-batch; fewer pipeline stages")  # fmt: skip
def stage_output_bytes(tokens: Array, width: Array, bytes_each: Array, in_flight: Array, ranks: Array) -> Array:
    """Output of every micro-batch in flight, which DeepSpeed's pipeline keeps until backward has passed the stage.

    Equation: T · width · bytes · m, with the residual stream's width on all stages but the last, whose output is the logits.

    Args:
        tokens: tokens of one micro-batch on this rank.
        width: elements a token has in the stage's output: hidden size, or the vocabulary on the last stage.
        bytes_each: bytes of one element in the compute dtype.
        in_flight: micro-batches a pipeline stage holds at once.
        ranks: tensor ranks that split the output: all of them between stages (``pipe_partitioned``), see ``vocabulary_ranks`` at the end.

    Returns:
        Bytes per GPU.

    Source: DeepSpeed runtime/pipe/engine.py, ``pipe_buffers["outputs"]``; Korthikanti et al., appendix B, on freeing them.

    Example: 4,096 tokens of width 8,192 in 16-bit, 16 micro-batches in flight, over 4 tensor ranks.
        >>> stage_output_bytes(4096, 8192, 2, 16, 4) / 2**30
        0.25
    """
    return tokens * width * bytes_each * in_flight / ranks


@term(title="head input gathered over tensor ranks", equation="tokens × hidden × bytes_each × (1 - 1 / tensor_ranks)",
      source="torchtitan", exactness="derived", changes_it="micro-batch; a fused loss does not help")  # fmt: skip
def gathered_head_input_bytes(tokens: Array, hidden: int, bytes_each: Array, tensor_ranks: Array) -> Array:
    """The rest of the sequence, gathered for the head under sequence parallelism and kept for its weights' gradient.

    Equation: T · h · bytes · (1 − 1/tp): the rank's own part is counted with the final norm. Bytes per GPU.

    Source: torchtitan's plan (the head takes Shard(1) and computes on the whole sequence); Korthikanti et al., section 4.3.

    Example: 131,072 tokens of width 8,192 over 8 tensor ranks.
        >>> gathered_head_input_bytes(131072, 8192, 2, 8) / 2**30
        1.75
    """
    return tokens * hidden * bytes_each * (1 - 1 / tensor_ranks)


def busiest_stage(setup: TrainingSetup, numbers: Numbers, columns: Columns, first: Share) -> tuple[Ledger, Share]:
    """Lines and share of the pipeline stage that needs most, for every candidate; the first one's share is given."""
    stages = end_stages(setup, numbers, columns, (first, Ledger))
    if len(stages) == 1:
        return stages[0]
    (of_first, first), (of_last, last) = stages
    moments = moments_of(setup)
    takes_last = last_is_busiest(*(reduce(np.maximum, [ledger.at(moment) for moment in moments]) for ledger in (of_first, of_last)))
    share = Share(**{f.name: np.where(takes_last, getattr(last, f.name), getattr(first, f.name)) for f in fields(Share)})
    return chosen(of_first, of_last, takes_last), share


def end_stages(setup: TrainingSetup, numbers: Numbers, columns: Columns, made: tuple[Share, type[L]]) -> list[tuple[L, Share]]:
    """Lines and share of the first stage, whose share is given with the kind of ledger, and where there are several of the last."""
    first, kind = made
    piped = bool((columns.pp > 1).any())
    shares = [first, share_of(setup, numbers, columns, int(columns.pp.max()) - 1)] if piped else [first]
    stages = [(kind(columns.shape), share) for share in shares]
    for ledger, share in stages:
        _add_stage(gpu_scope(ledger, setup), setup, numbers, columns, share)
    for number in range(len(setup.companions)):
        _add_companion([ledger for ledger, _ in stages], setup, columns, number)
    return stages


def _add_companion(ledgers: Sequence[Tally], setup: TrainingSetup, columns: Columns, number: int) -> None:
    """Add one of the other models to the ledgers of both ends of the pipeline."""
    companion, own, c = evaluated(setup, number, columns)
    for stage, ledger in zip((0, int(c.pp.max()) - 1), ledgers, strict=False):
        scope, share = gpu_scope(ledger, setup, number), share_of(own, own.numbers, c, stage)
        if companion.trains:
            _add_stage(scope, own, own.numbers, c, share)
        else:
            add_frozen(scope, own, companion, c, share)


def last_is_busiest(most_of_first: Array, most_of_last: Array) -> Array:
    """Whether the last stage needs more; where both need as much, the first has more blocks of activations cached beside it."""
    busiest: Array = most_of_last > _CLEARLY * most_of_first
    return busiest


def _add_stage(ledger: Tally, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> None:
    add_states(ledger, setup, numbers, columns, share)
    add_activations(ledger, setup, columns, share)
    if (columns.pp > 1).any():
        _add_outputs(ledger, setup, columns, share)
    if (columns.tp > 1).any():
        ledger.add(gathered_head_input_bytes, "activations", "forward", {FORWARD: 1.0, LOSS: 1.0}, tokens=share.tokens * share.has_loss,
                   hidden=setup.model.hidden_size, bytes_each=columns.compute_bytes, tensor_ranks=residual_ranks(columns))  # fmt: skip
    # A fused loss reads the head's slice; any other sees as much of the vocabulary as the engine leaves together.
    loss = columns if setup.recipe.fused_loss else replace(columns, tp=vocabulary_ranks(columns))
    add_logits(ledger, setup, loss, replace(share, tokens=share.tokens * share.has_loss))
    add_buffers(ledger, setup, numbers, columns, share)


def _add_outputs(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the outputs of DeepSpeed's stages; at the end of forward the last one's is among the logits already."""
    logits = 0 if setup.recipe.fused_loss else setup.model.vocab_size
    ledger.add(
        stage_output_bytes, "activations", "forward", {FORWARD: 1 - share.has_loss, LOSS: 1.0} | IN_BLOCKS,
        tokens=share.tokens * ((columns.deepspeed > 0) & (columns.pp > 1)),
        width=np.where(share.has_loss > 0, logits, setup.model.hidden_size),
        bytes_each=columns.compute_bytes,
        in_flight=share.in_flight,
        ranks=np.where(share.has_loss > 0, vocabulary_ranks(columns), columns.tp),
    )  # fmt: skip
