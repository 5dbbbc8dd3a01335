"""Logits and loss: the forgotten term of large vocabularies."""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Tally
from app.domain.memory.moments import FORWARD, LOSS
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share


@term(title="logits and loss", equation="tokens × vocab × bytes_per_logit / tensor_ranks", source="hf-loss", exactness="derived",
      changes_it="a fused or chunked loss never holds them; micro-batch; sequence parallelism")  # fmt: skip
def logits_bytes(tokens: Array, vocab: int, bytes_per_logit: Array, tensor_ranks: Array) -> Array:
    """Copies of the logits that live together during the backward of the cross-entropy.

    Equation: 12 · T · V (three fp32 copies), whatever the compute dtype.

    Args:
        tokens: tokens of one micro-batch on this rank.
        vocab: vocabulary size.
        bytes_per_logit: bytes of all copies alive together.
        tensor_ranks: ranks that split the vocabulary.

    Returns:
        Bytes per GPU.

    Source: transformers ForCausalLMLoss; counted on fake tensors.

    Example: 8,192 tokens of Llama-3's vocabulary hold 12.6e9 bytes.
        >>> logits_bytes(8192, 128256, 12, 1)
        12608077824.0
    """
    return tokens * vocab * bytes_per_logit / tensor_ranks


@term(
    title="fused loss",
    equation="bytes_each × (2 × head_params + (tokens × hidden + chunk_logits) / tensor_ranks)",
    source="liger",
    exactness="derived",
    changes_it="vocabulary; whether the head is trained",
)
def fused_loss_bytes(tokens: Array, hidden: int, chunk_logits: Array, head_params: Array, bytes_each: Array, tensor_ranks: Array) -> Array:
    """A loss computed in chunks, which makes its gradients in forward: the head's and its temporary, the input's, one chunk.

    Equation: 2b·V·h + b·T·h + b·C·V, never the full logits. Bytes per GPU.

    Args:
        tokens: tokens of one micro-batch on this rank.
        hidden: hidden size.
        chunk_logits: logits of one chunk of rows, elements.
        head_params: trained parameters of the head on this rank.
        bytes_each: bytes of one element in the compute dtype.
        tensor_ranks: ranks that split the vocabulary.

    Source: Liger kernel's fused_linear_cross_entropy, counted on fake tensors.
    """
    return bytes_each * (2 * head_params + (tokens * hidden + chunk_logits) / tensor_ranks)


def chunk_rows(tokens: Array, vocab: int, hidden: int) -> Array:
    """Rows of logits a fused loss makes at once: as many as keep a chunk near the size of its input, rounded up to a power of two.

    Equation: 2^⌈log₂(T / ⌈V/h⌉)⌉

    Example: 8,192 tokens of Llama-3-8B are worked off in chunks of 256.
        >>> float(chunk_rows(8192, 128256, 4096))
        256.0
    """
    rows: Array = 2.0 ** np.ceil(np.log2(np.maximum(1, np.ceil(tokens / -(-vocab // hidden)))))
    return np.minimum(tokens, rows)


def add_logits(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the loss line; models without a vocabulary have none."""
    model = setup.model
    if not model.vocab_size:
        return
    if setup.recipe.fused_loss:
        ledger.add(
            fused_loss_bytes, "logits", "forward", {FORWARD: 1.0}, tokens=share.tokens, hidden=model.hidden_size,
            chunk_logits=chunk_rows(share.tokens, model.vocab_size, model.hidden_size) * model.vocab_size,
            head_params=share.head * (0.0 if setup.recipe.adapter else 1.0), bytes_each=columns.compute_bytes, tensor_ranks=columns.tp,
        )  # fmt: skip
        return
    loss, forward = logit_copies(setup, columns)
    ledger.add(logits_bytes, "logits", "backward", {LOSS: 1.0, FORWARD: forward / loss}, tokens=share.tokens,
               vocab=model.vocab_size, bytes_per_logit=loss, tensor_ranks=columns.tp)  # fmt: skip


def logit_copies(setup: TrainingSetup, columns: Columns) -> tuple[Array, Array]:
    """Bytes of one logit over all copies alive in the loss's backward and at the end of forward.

    Causal models: log-softmax, its gradient and the softmax gradient in fp32 (12); at the end of forward the 16-bit logits,
    their fp32 cast and the log-softmax (10). Masked models do not upcast: three copies in the compute dtype, or two fp32 and
    the 16-bit logits under autocast. A soft cap keeps one more. Trainers of adapters run under autocast, which takes a causal
    model's loss in fp32 whatever its code does.
    """
    numerics, width = setup.model.numerics, columns.compute_bytes
    cap = width * numerics.softcapped_logits
    if numerics.upcasts_logits or (setup.recipe.adapter and setup.model.kind == "decoder"):
        return 12.0 + cap, np.where(width == 4, 8.0, 10.0) + cap
    return np.where(columns.autocast > 0, 10.0, 3 * width) + cap, np.where(columns.autocast > 0, 6.0, 2 * width) + cap
