"""What a plan's document predicts, by how exact it is, and which setup it is of: what a measurement is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.catalog.gpus import find_gpu
from app.domain.calibrate import Part
from app.domain.errors import InvalidRequestError
from app.services.saved_plans import gpu_names

Document = Mapping[str, Any]
_FAMILIES = {"ddp": "whole", "zero1": "states", "zero2": "states"}
"""What a strategy shards: nothing, gradients and optimizer states, or parameters too, which all others do."""
_OVERHEAD = "overhead"


def prediction_of(document: Document) -> dict[str, Any]:
    """The figures of a plan's recommended settings that a run can be compared with, each as ``[fixed, fitted]``.

    Returns:
        ``situation``, ``memory`` by total, ``time``, ``tokens_per_step`` and ``device_memory_bytes``; nothing of an answer of other shape.
    """
    try:
        return _prediction(document)
    except (KeyError, TypeError):  # a plan that was imported may be of any engine
        return {}


def _prediction(document: Document) -> dict[str, Any]:
    best = document["recommended"]
    gpu, seconds = best["memory"]["gpu"], best["time"]
    return {
        "situation": situation_of(document),
        "memory": {name: [part.fixed, part.fitted] for name, part in _memory(gpu).items()},
        "time": {"step": _step(seconds)},
        "tokens_per_step": seconds["step_s"] * seconds["tokens_per_s"],
        "device_memory_bytes": round(gpu["capacity_bytes"] / (1 - _headroom(document))),
    }


def parts_of(prediction: Mapping[str, Any], kind: str) -> dict[str, Part]:
    """The figures of one kind, ``memory`` or ``time``, by name."""
    return {name: Part(float(fixed), float(fitted)) for name, (fixed, fitted) in (prediction.get(kind) or {}).items()}


def situation_of(document: Document) -> str:
    """What must be the same for a run to say something about a plan: everything that fitted constants depend on, and no size.

    GPU, framework, what is sharded, kind of model, dtype, optimizer, adapter; empty where an answer does not say.
    """
    settings, model = document["recommended"]["settings"], document["model"]
    try:
        gpu = ", ".join(_key(name) for name in gpu_names(document["request"]).split(", "))
    except InvalidRequestError:  # an instance that the catalogue no longer has
        return ""
    kind = model.get("kind") or ""
    adapter = (document["request"].get("training") or {}).get("adapter") or {}
    experts = "mixture of experts" if model.get("active_params") is not None else "dense"
    named = (gpu, settings["framework"], _FAMILIES.get(settings["strategy"], "parameters"), kind, experts, settings["precision"],
             settings["optimizer"], adapter.get("kind") or "full")  # fmt: skip
    return " | ".join(map(str, named)) if kind else ""


def _key(name: str) -> str:
    """A GPU's key, by whichever of its names it was asked for; one described in the request has its own."""
    try:
        return find_gpu(name).key
    except InvalidRequestError:
        return name


def _headroom(document: Document) -> float:
    return float(document["request"].get("headroom_frac") or 0.0)


def _memory(gpu: Document) -> dict[str, Part]:
    """Totals of a GPU. What the process holds outside the allocator is all fitted, and is what device has more than reserved."""
    fixed, fitted = _sums(gpu, overhead=False)
    fixed_overhead, fitted_overhead = _sums(gpu, overhead=True)
    outside = gpu["device_bytes"] - gpu["peak_reserved_bytes"]
    parts = {
        "allocated": Part(fixed, fitted),
        "reserved": Part(fixed + fixed_overhead, fitted + fitted_overhead - outside),
        "device": Part(fixed + fixed_overhead, fitted + fitted_overhead),
    }
    if (total := gpu.get("peak_reserved_expandable_bytes")) is not None:
        parts["reserved_expandable"] = grown = _rest_fitted(total, fixed + fixed_overhead)
        parts["device_expandable"] = Part(grown.fixed, grown.fitted + outside)
    if (total := gpu.get("needed_bytes")) is not None:
        parts["needed"] = _rest_fitted(total, fixed)
    return parts


def _rest_fitted(total: float, fixed: float) -> Part:
    """A total that is above what is fixed in it by what was fitted."""
    return Part(min(fixed, total), max(0.0, total - fixed))


def _sums(gpu: Document, *, overhead: bool) -> tuple[float, float]:
    """Bytes at the peak that are fixed, and those that are fitted; of overhead or of tensors."""
    terms = [term for term in gpu["terms"] if (term["category"] == _OVERHEAD) is overhead]
    fitted = sum(term["bytes"] for term in terms if term["exactness"] == "fitted")
    return float(sum(term["bytes"] for term in terms) - fitted), float(fitted)


def _step(seconds: Document) -> list[float]:
    """A step: efficiencies of kernels, and of links in what of communication is not hidden, are fitted."""
    fitted = sum(term["seconds"] for term in seconds.get("terms", ()) if term["exactness"] == "fitted") + seconds["exposed_communication_s"]
    return [max(0.0, seconds["step_s"] - fitted), min(seconds["step_s"], fitted)]
