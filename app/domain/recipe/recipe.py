"""How the model is trained: everything of a request that is not model, cluster or constraint."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.recipe.adapter import Adapter

CHECKPOINTING_NAMES = ("none", "selective", "full")
"""Checkpointing policies; the place in this list is the number that candidate tables hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The training recipe. None leaves a choice to the planner or to the framework's own default.

    Attributes:
        seq_len: tokens per sequence before any sequence-parallel split.
        micro_batch, grad_accum, global_batch: sequences per rank per forward, micro-steps per step, sequences per step.
        precision: compute dtype.
        master_weights: whether a fp32 copy of the weights is trained.
        grad_dtype: dtype gradients are reduced and accumulated in.
        trainable_params: for partly frozen models without an adapter.
        attention: kernel; ``flash`` never stores scores, ``eager`` stores them, ``sdpa`` picks a kernel by dtype and grouping.
        fused_loss: full logits never live.
        ema: a second, averaged copy of the weights.
    """

    seq_len: int
    micro_batch: int | None = None
    grad_accum: int | None = None
    global_batch: int | None = None
    precision: str = "bf16"
    master_weights: bool = True
    optimizer: str = "adamw"
    optimizer_in_backward: bool = False
    optimizer_implementation: str | None = None
    optimizer_state_dtype: str | None = None
    grad_dtype: str | None = None
    adapter: Adapter | None = None
    trainable_params: int | None = None
    activation_checkpointing: str | None = None
    activation_offload: bool | None = None
    attention: str = "flash"
    fused_loss: bool = False
    tiled_mlp: bool = False
    compile: bool = False
    ema: bool = False
