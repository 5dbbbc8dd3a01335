"""The few byte counts that rules put into their sentences."""

from __future__ import annotations

from app.audit.subject import ModelFacts, Subject
from app.audit.torch.effective import Effective
from app.domain.units import DTYPE_BYTES, GB, format_gib

MOMENTS = {"adamw": 2, "lion": 1, "muon": 1, "sgd_momentum": 1, "sgd": 0}
"""Values that torch optimizers keep for a weight, in its dtype."""


def billions(params: int) -> str:
    """A count of parameters, as in ``8.03e9``.

    Example:
        >>> billions(8030261248), billions(125_000_000)
        ('8.03e9', '0.125e9')
    """
    return f"{params / GB:.3g}e9"


def element(dtype: str) -> float:
    """Bytes of one value; those of fp32 for a dtype without a size of its own."""
    return DTYPE_BYTES.get(dtype, 4.0)


def state_bytes(subject: Subject, dtype: str) -> float:
    """Bytes of weight, gradient and optimizer states of one trained parameter, all in one dtype as FSDP keeps them."""
    optimizer = subject.training.optimizer if subject.training is not None else "adamw"
    return element(dtype) * (2 + MOMENTS.get(optimizer, 2))


def whole_model(model: ModelFacts, dtype: str) -> str:
    """All weights in a dtype, with the arithmetic."""
    return f"{billions(model.total_params)} × {element(dtype):g} bytes = {format_gib(model.total_params * element(dtype))}"


def trained(model: ModelFacts, size: float) -> str:
    """So many bytes for each trained parameter, with the arithmetic."""
    return f"{billions(model.trainable_params)} × {size:g} bytes = {format_gib(model.trainable_params * size)}"


def block_params(model: ModelFacts) -> int:
    """Parameters of one repeated block, from the total without the embedding tables; at least 1."""
    tables = 2 * model.vocab_size * model.hidden_size
    rest = model.total_params - tables if model.total_params > tables else model.total_params
    return max(rest // max(model.num_layers, 1), 1)


def states_per_gpu(subject: Subject, acting: Effective) -> float | None:
    """Bytes of weights, gradients and optimizer states on one GPU; None without model or ranks."""
    model, shards = subject.model, acting.shards
    if model is None or shards is None:
        return None
    held = model.trainable_params * state_bytes(subject, acting.stored) + model.frozen_params * element(acting.compute)
    return held / max(shards * acting.tensor_parallel, 1)
