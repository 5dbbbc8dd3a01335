"""What every emitter is given: the settings chosen and the model they are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.model.architecture import Architecture
from app.domain.plan import Settings
from app.domain.versions import Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitJob:
    """Input of an emitter.

    Attributes:
        settings: the recommended candidate's settings.
        model: the architecture (names of classes, shapes).
        hf_id: repository to load the model from by default; None when the user gave only shapes or a config.
        revision: commit of that repository the plan is for; None where it is for the model whatever its commit.
        hf_config: the model's config.json, if one is known; the script then builds from it without a network.
        adapter: the request's adapter block (kind, rank, targets, ...), or None.
        engine_version: version that computed the figures.
        figures: what the plan was made for, in words, for the header: model, GPUs, peak memory, tokens/s.
        plan_name, plan_id: what a saved plan is called and found by; empty for one that is not saved.
        nvme_path: folder for NVMe offload.
        versions: releases the files are for; None for the newest they were checked with.
        planned_allocated_bytes, planned_reserved_bytes: predicted peak of the busiest GPU, for the script to print beside
            the measured one; None if unknown.
    """

    settings: Settings
    model: Architecture
    hf_id: str | None
    hf_config: Mapping[str, Any] | None
    adapter: Mapping[str, Any] | None
    engine_version: str
    figures: Mapping[str, str]
    plan_name: str = ""
    plan_id: str = ""
    nvme_path: str = "/local_nvme"
    versions: Versions | None = None
    revision: str | None = None
    planned_allocated_bytes: int | None = None
    planned_reserved_bytes: int | None = None
