"""Which dtype each framework really holds: parameters, gradients, master copy, optimizer states, wire.

DeepSpeed casts the module to the compute dtype and keeps fp32 masters apart. FSDP2 stores the weights once, in the dtype
they had when sharded, and casts for compute. DDP runs autocast over the stored weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.recipe.recipe import Recipe
from app.domain.units import DTYPE_BYTES

FRAMEWORKS = ("ddp", "fsdp2", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDtypes:
    """Names of the dtypes one framework uses for one recipe.

    Attributes:
        compute: what matrix products run in.
        param: what a trained weight is stored in between steps.
        frozen: what a frozen weight is stored in.
        master: the separate fp32 master copy, or None where ``param`` is the master.
        duplicate_master: a copy of the parameters in their own dtype that the optimizer keeps although it adds nothing
            (DeepSpeed without a lower-precision module).
        grad: what gradients are accumulated in.
        reduce: what gradients travel in.
        state: what optimizer moments are kept in.
        autocast: casts are made per operation over higher-precision weights, and cached.
    """

    compute: str
    param: str
    frozen: str
    master: str | None
    duplicate_master: bool
    grad: str
    reduce: str
    state: str
    autocast: bool


def stored_dtypes(framework: str, recipe: Recipe) -> StoredDtypes:
    """What ``framework`` holds for ``recipe``.

    Source: DeepSpeed runtime/engine.py and stage files; torch fully_shard; measured element by element (tests/verify/test_counts.py).
    """
    compute = "bf16" if recipe.precision == "fp8" else recipe.precision
    if framework == "deepspeed":
        return _deepspeed(compute, recipe)
    stored = _stored(compute, recipe)
    mixed = stored == "fp32" and compute != "fp32"
    frozen = compute if recipe.adapter else stored
    if framework == "fsdp2":
        reduce = recipe.grad_dtype or ("fp32" if mixed else compute)
        return StoredDtypes(
            compute=compute, param=stored, frozen=frozen, master=None, duplicate_master=False, grad=stored, reduce=reduce,
            state=recipe.optimizer_state_dtype or stored, autocast=False,
        )  # fmt: skip
    return StoredDtypes(
        compute=compute, param=stored, frozen=frozen, master=None, duplicate_master=False, grad=stored, reduce=stored,
        state=recipe.optimizer_state_dtype or stored, autocast=mixed and recipe.adapter is None,
    )  # fmt: skip


def dtype_bytes(dtype: str | None) -> float:
    """Bytes of one element; 0 for no copy at all."""
    return DTYPE_BYTES[dtype] if dtype else 0.0


def _stored(compute: str, recipe: Recipe) -> str:
    if recipe.adapter and recipe.adapter.dtype:
        return recipe.adapter.dtype
    return "fp32" if recipe.master_weights else compute


def _deepspeed(compute: str, recipe: Recipe) -> StoredDtypes:
    if compute == "fp32":
        return StoredDtypes(
            compute="fp32", param="fp32", frozen="fp32", master=None, duplicate_master=True, grad="fp32", reduce="fp32",
            state=recipe.optimizer_state_dtype or "fp32", autocast=False,
        )  # fmt: skip
    state = recipe.optimizer_state_dtype or ("fp32" if recipe.master_weights else compute)
    return StoredDtypes(
        compute=compute, param=compute, frozen=compute, master="fp32" if recipe.master_weights else None,
        duplicate_master=not recipe.master_weights, grad=recipe.grad_dtype or compute, reduce=compute, state=state, autocast=False,
    )  # fmt: skip
