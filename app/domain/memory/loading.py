"""Host memory while a model is loaded and its engine built: how many copies the emitted files make, and the common other way.

What the files do: FSDP2's script loads on rank 0 alone, the other ranks build on the meta device. Under stage 3 transformers reads
the checkpoint on rank 0 alone into a model that zero.Init has already partitioned. Every other strategy loads a whole copy in each
rank, in the dtype the script asks for. A pipeline's ranks build their own layers only (DeepSpeed PipelineModule, LayerSpec).
"""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Tally
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share

LOAD, INITIALISE, TRAIN = "load", "initialise", "train"
"""Moments of the host: loading the checkpoint, building the engine, training."""


@term(
    title="model while loading",
    equation="params × bytes_each × copies",
    source="hf-loading",
    exactness="derived",
    changes_it="loading on one rank, or inside zero.Init: one copy a node instead of one a rank",
)
def load_bytes(params: Array, bytes_each: Array, copies: Array) -> Array:
    """Weights in host memory while ranks load them.

    Equation: P · bytes · copies; one copy where one rank loads for all, one for each rank of the node where every rank loads.

    Args:
        params: parameters of the whole model, or of a rank's part of a pipeline.
        bytes_each: bytes of one in the dtype it is loaded in.
        copies: whole copies in one node's memory.

    Returns:
        Bytes per node.

    Source: transformers 5.24 modeling_utils.py ``_load_pretrained_model``; the emitted scripts.

    Example: 65.3e9 parameters in 16 bits, in each of 8 ranks.
        >>> round(float(load_bytes(65.3e9, 2, 8)) / 1e9)
        1045
    """
    return params * bytes_each * copies


@term(
    title="weights flattened on the host",
    equation="2 × params × bytes_each × ranks_per_node",
    source="ds-stage12",
    exactness="derived",
    changes_it="ZeRO-3, or a GPU with room for the weights twice",
)
def host_flatten_bytes(params: Array, bytes_each: Array, ranks_per_node: Array) -> Array:
    """Stages 1 and 2 flatten the weights on the host where the GPU has no room for a second copy: the weights and the flat buffer.

    Equation: (2 + 2)·Ψ·L in 16 bits.

    Returns:
        Bytes per node.

    Source: DeepSpeed stage_1_and_2.py ``__init__`` ("Flattening param group on CPU").

    Example: 13e9 parameters on 8 ranks.
        >>> host_flatten_bytes(13e9, 2, 8) / 1e9
        416.0
    """
    return 2 * params * bytes_each * ranks_per_node


def add_loading(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share, per_node: Array) -> None:
    """Add the lines of loading and of building the engine."""
    c, numbers = columns, setup.numbers
    # A loader reads the whole model, however it is split over ranks later, but a pipeline is built from layer specifications, of which
    # each rank builds its own stage's, and of those its own slices. Adapters are made afterwards.
    part = np.where(c.pp > 1, share.inside + share.outside, numbers.total)
    trained = 0 if numbers.adapter else numbers.trainable
    width = (numbers.frozen * c.frozen_bytes + trained * c.param_bytes) / numbers.total
    copies = np.where((c.fsdp2 > 0) | c.zero3, 1.0, per_node)
    ledger.add(load_bytes, "overhead", "always", {LOAD: 1.0}, params=part, bytes_each=width, copies=copies)
    flattened = share.trainable * c.zero12 * _no_room_to_flatten(setup, columns, share)
    ledger.add(host_flatten_bytes, "overhead", "always", {INITIALISE: 1.0}, params=flattened, bytes_each=c.param_bytes,
               ranks_per_node=per_node)  # fmt: skip


def _no_room_to_flatten(setup: TrainingSetup, columns: Columns, share: Share) -> Array:
    """Whether the GPU, once it holds the weights, is too full for a flat copy of the trained ones."""
    c, free = columns, setup.pool.node.gpu.memory_bytes - setup.rates.context_bytes
    weights = share.trainable * c.param_bytes + share.frozen * c.frozen_bytes
    full: Array = free - weights < share.trainable * c.param_bytes
    return full
