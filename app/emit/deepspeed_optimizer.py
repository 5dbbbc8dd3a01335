"""The optimizer block, for each optimizer DeepSpeed can build itself, and the flags for those it cannot."""

from __future__ import annotations

from typing import Any

from app.domain.errors import InvalidRequestError
from app.emit.job import EmitJob
from app.emit.recipe import CLIENT_OPTIMIZERS, hyperparameters, zero_stage

UNTESTED = ("sgd", "sgd_momentum", *CLIENT_OPTIMIZERS)
"""Optimizers ZeRO refuses to shard until it is told that this is meant."""


def optimizer_block(job: EmitJob, *, auto: bool) -> dict[str, Any]:
    """The optimizer block; empty where the training script builds the optimizer.

    With ``auto`` the Trainer fills in lr, betas, eps and weight_decay, each only where the optimizer has it.
    """
    h, name = hyperparameters(job), job.settings.optimizer
    if name in CLIENT_OPTIMIZERS:
        return {}
    values: dict[str, Any] = {"lr": h.lr, "betas": list(h.betas), "eps": h.eps, "weight_decay": h.weight_decay}
    if auto:
        values = dict.fromkeys(values, "auto")
    lr, decay = {"lr": values["lr"]}, {"weight_decay": values["weight_decay"]}
    if name == "adamw":
        return _block("AdamW", {**values, **_adam_flags(job)})
    if name == "lion":
        return _block("Lion", {**lr, "betas": values["betas"], **decay})
    if name == "muon":
        # betas and eps belong to the auxiliary AdamW of embeddings, head and vectors.
        return _block("Muon", {**lr, "momentum": h.momentum, **decay, "betas": values["betas"], "eps": values["eps"]})
    if name == "sgd_momentum":
        return _block("SGD", {**lr, "momentum": h.momentum, **decay})
    if name == "sgd":
        return _block("SGD", {**lr, **decay})
    raise InvalidRequestError.at("training", "optimizer", msg=f"DeepSpeed has no optimizer {name}", hint="use adamw")


def optimizer_flags(job: EmitJob) -> dict[str, Any]:
    """Top-level flags an optimizer outside DeepSpeed's tested list needs."""
    s = job.settings
    if zero_stage(job) == 0 or s.optimizer not in UNTESTED:
        return {}
    flags: dict[str, Any] = {"zero_allow_untested_optimizer": True}
    if s.offload_optimizer != "none":
        # Otherwise DeepSpeed insists on its own CPU Adam.
        flags["zero_force_ds_cpu_optimizer"] = False
    return flags


def _block(kind: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


def _adam_flags(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    flags: dict[str, Any] = {"adam_w_mode": True}
    if s.offload_optimizer == "none" and s.optimizer_implementation in ("foreach", "fused", "loop"):
        # torch's AdamW instead of the fused kernel DeepSpeed compiles at the first run.
        flags["torch_adam"] = True
        if s.optimizer_implementation == "fused":
            flags["fused"] = True
        else:
            flags["foreach"] = s.optimizer_implementation == "foreach"
    return flags
