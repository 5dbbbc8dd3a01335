"""Optimizers: how many state elements each keeps for a parameter, and what their step allocates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.model.architecture import Architecture, Role, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer.

    Attributes:
        name: as in the request.
        state_numel: state elements kept for one weight tensor, as a function of the tensor.
        fixed_bytes_per_element: bytes of a state element where the optimizer fixes it (8-bit states); None = the framework's dtype.
        paged: states live in managed memory the driver pages to the host; torch's allocator never sees them.
    """

    name: str
    state_numel: Callable[[Weight], int]
    fixed_bytes_per_element: float | None = None
    paged: bool = False


def _nothing(_: Weight) -> int:
    return 0


def _one(weight: Weight) -> int:
    return weight.numel


def _two(weight: Weight) -> int:
    return 2 * weight.numel


def _factored(weight: Weight) -> int:
    """Adafactor: a row and a column vector for matrices, a full second moment for vectors."""
    if len(weight.shape) < 2:
        return weight.numel
    rows, columns = weight.shape[-2], weight.shape[-1]
    return weight.numel // (rows * columns) * (rows + columns)


def is_hidden_matrix(weight: Weight) -> bool:
    """What Muon steps; vectors, embeddings and the head are left to Adam."""
    return len(weight.shape) >= 2 and weight.role in (Role.LINEAR, Role.EXPERT)


def _muon(weight: Weight) -> int:
    """Muon: one momentum for hidden matrices, Adam's two for everything else."""
    return weight.numel if is_hidden_matrix(weight) else 2 * weight.numel


# Blockwise 8-bit states: one byte an element and a fp32 scale for 256 elements (Dettmers et al., 8-bit Optimizers).
_BYTES_8BIT = 1 + 4 / 256

OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer(name="adamw", state_numel=_two),
        Optimizer(name="adamw_8bit", state_numel=_two, fixed_bytes_per_element=_BYTES_8BIT),
        Optimizer(name="paged_adamw_8bit", state_numel=_two, fixed_bytes_per_element=_BYTES_8BIT, paged=True),
        Optimizer(name="adafactor", state_numel=_factored, fixed_bytes_per_element=4.0),
        Optimizer(name="lion", state_numel=_one),
        Optimizer(name="muon", state_numel=_muon),
        Optimizer(name="sgd_momentum", state_numel=_one),
        Optimizer(name="sgd", state_numel=_nothing),
    )
}


def state_elements_per_param(model: Architecture, optimizer: Optimizer) -> float:
    """State elements per parameter, averaged over the model's tensors.

    Example: 2 for Adam, 1 for Lion, about 0.0005 for Adafactor on 4096-wide matrices, between 1 and 2 for Muon.
    """
    params = states = 0
    for weight, owned in _owned_weights(model):
        params += weight.numel * owned
        states += optimizer.state_numel(weight) * owned
    return states / params if params else 0.0


def _owned_weights(model: Architecture) -> list[tuple[Weight, int]]:
    inside = [(w, s.owned) for s in model.stacks for w in s.block.weights]
    return inside + [(w, 1) for w in model.weights]
