"""What a request pins. None leaves an axis to the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain.versions import Versions

OFFLOAD_TARGETS = ("none", "cpu", "nvme")
OBJECTIVES = ("throughput", "simplest", "fewest_gpus", "longest_sequence", "largest_micro_batch")
AXES = ("tensor_parallel", "pipeline_parallel", "sequence_parallel", "expert_parallel")
"""Mesh axes that are not data-parallel, by the names of their degrees."""
UNWRITTEN_AXES = ("pipeline_parallel", "sequence_parallel", "expert_parallel")
"""Those for which no training script is written: they need a model that is written for them (docs/adr/0006)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Pinned choices, in the request's words, and the releases they are for where it names any."""

    framework: str | None = None
    strategy: str | None = None
    shard_group_size: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    sequence_parallel: int | None = None
    expert_parallel: int | None = None
    offload_optimizer: str | None = None
    offload_parameters: str | None = None
    versions: Versions | None = None


def with_degrees(pins: Constraints, axes: Sequence[str]) -> Constraints:
    """The same pins, and degree 1 on each of these axes that is open."""
    degrees: dict[str, Any] = {axis: getattr(pins, axis) or 1 for axis in axes}
    return replace(pins, **degrees)
