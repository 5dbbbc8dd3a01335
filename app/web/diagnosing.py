"""Shape of the answer of a diagnosis, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.web.schemas import OPEN


class TensorOut(BaseModel):
    """An allocation with how its size comes about."""

    model_config = OPEN

    name: str
    bytes: int | None = Field(description="null where neither the log nor the request has its size")
    arithmetic: str
    confidence_frac: float


class RemedyOut(BaseModel):
    """A change with what it does, computed."""

    model_config = OPEN

    label: str
    settings: dict[str, Any] = Field(description="paths of a PlanRequest, or keys of the library, with their new values")
    frees_bytes: int | None = Field(description="on the device that was short; null where more of the request is needed")
    step_s_change: float | None = Field(description="seconds for the tokens of one step, negative is faster; null where not computed")
    enough: bool
    why: str


class DiagnosisOut(BaseModel):
    """Why a run failed or was slow, and what helps."""

    model_config = OPEN

    cause: str
    device: Literal["gpu", "host", "nvme", "none"]
    moment: Literal["initialisation", "forward", "loss", "backward", "reduction", "step", "load", "save"] | None
    tensor: TensorOut | None
    confidence_frac: float
    remedies: list[RemedyOut] = Field(description="what is enough first, the least slowdown first")
    would_not_help: list[str]
    missing: list[str] = Field(description="what would make it surer, with the command that gives it")
    notes: list[str] = Field(default_factory=list)
    others: list[TensorOut] = Field(default_factory=list, description="other allocations of the same size")
    expected: dict[str, Any] | None = Field(None, description="what the planner says of the same setup")
    slowness: dict[str, Any] | None = Field(None, description="the step expected and reported, and what binds it")
    read: dict[str, Any] = Field(default_factory=dict, description="what was read from the text")


EXAMPLES: Any = {
    "a log with its request": {
        "value": {
            "text": "CUDA out of memory. Tried to allocate 12.94 GiB "
            "(GPU 1; 79.35 GiB total capacity; 77.65 GiB already allocated; 316.12 MiB free)",
            "request": {
                "model": {"params": 13.9e9},
                "training": {"seq_len": 1536, "micro_batch": 1, "grad_accum": 1},
                "cluster": {"pools": [{"gpu": "a100-sxm-80gb", "gpus_per_node": 4}]},
                "constraints": {"strategy": "zero2"},
            },
        }
    },
    "a slow step": {
        "value": {
            "measured": {"step_s": 90},
            "request": {
                "model": {"preset": "llama-3.1-8b"},
                "training": {"seq_len": 2048, "micro_batch": 1, "grad_accum": 1, "adapter": {"kind": "lora"}},
                "cluster": {"pools": [{"gpu": "a100-sxm-80gb", "gpus_per_node": 8, "nodes": 2, "inter_node_gbit_per_s": 10}]},
                "constraints": {"strategy": "zero3"},
            },
        }
    },
}
