"""What a named release of DeepSpeed has not: keys left out of its file, or done by the script instead.

The table is app/catalog/keys.json; without a named release files are for the newest it was checked with, which has every key.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import reduce
from typing import Any

from app.domain.errors import InvalidRequestError
from app.domain.versions import Key, paths_of
from app.emit.job import EmitJob

LEAF_MODULE = "zero_optimization.leaf_module"


def without_later_keys(config: dict[str, Any], job: EmitJob) -> dict[str, Any]:
    """The configuration as the job's release takes it.

    Raises:
        InvalidRequestError: it needs a key that nothing replaces.
    """
    out = copy.deepcopy(config) if job.versions else config
    for key in later_keys(config, job):
        if key.below == "refuse":
            raise InvalidRequestError.at(
                "deepspeed_version", msg=f"{key.name} came with DeepSpeed {key.since}: older releases do not know {key.loses}",
                hint=f"use {key.replaced_by}, or deepspeed_version {key.since} or newer",
            )  # fmt: skip
        if key.below in ("drop", "script"):
            *parents, last = key.name.split(".")
            reduce(dict.__getitem__, parents, out).pop(last)
    return out


def later_keys(config: Mapping[str, Any], job: EmitJob) -> list[Key]:
    """Keys of a configuration that came after the job's release, those inside a block that did as well left out."""
    if job.versions is None:
        return []
    paths = paths_of(config)
    if "optimizer" in config:
        paths.append(f"optimizer.type {config['optimizer']['type']}")
    stage = config["zero_optimization"]["stage"]
    names = [name for path in paths for name in (path, f"{path} at stage {stage}")]
    found = [key for name in names if (key := job.versions.lacking("deepspeed", name))]
    return [key for key in found if not any(key.name.startswith(other.name + ".") for other in found)]


def leaf_calls(job: EmitJob) -> bool:
    """Whether the script must name the leaf modules, because the file cannot."""
    return job.versions is not None and job.versions.lacking("deepspeed", LEAF_MODULE) is not None
