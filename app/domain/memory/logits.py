"""Logits and loss: the forgotten term of large vocabularies."""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
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
    equation="4 × vocab × hidden / tensor_ranks × head_trained + 12 × tokens × hidden / tensor_ranks",
    source="liger",
    exactness="derived",
    changes_it="vocabulary; whether the head is trained",
)
def fused_loss_bytes(tokens: Array, vocab: int, hidden: int, tensor_ranks: Array, head_trained: float) -> Array:
    """A loss computed in chunks of about tokens · hidden / vocab rows: the head's gradient and one chunk, never the full logits.

    Equation: 4·V·h (head gradient and its temporary) + 2·T·h + about 10·T·h for one chunk. Bytes per GPU.
    """
    return 4 * vocab * hidden / tensor_ranks * head_trained + 12 * tokens * hidden / tensor_ranks


def add_logits(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add the loss line; models without a vocabulary have none."""
    model = setup.model
    if not model.vocab_size:
        return
    if setup.recipe.fused_loss:
        ledger.add(
            fused_loss_bytes,
            "logits",
            "backward",
            {LOSS: 1.0},
            tokens=share.tokens,
            vocab=model.vocab_size,
            hidden=model.hidden_size,
            tensor_ranks=columns.tp,
            head_trained=0.0 if setup.recipe.adapter else 1.0,
        )
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
