"""What is said about the releases a request names: what they have not, and whether anyone has checked them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from app.catalog.keys import checked, load_faults
from app.domain.plan import PlanWarning
from app.domain.versions import Key, release_of
from app.emit.deepspeed import deepspeed_config
from app.emit.job import EmitJob
from app.emit.launch import pinned_option
from app.emit.releases import later_keys

_WORDS = {"deepspeed": "DeepSpeed", "torch": "PyTorch"}


def release_warnings(job: EmitJob) -> Iterator[PlanWarning]:
    """A warning for each thing the plan's files would use and the named release has not, and for releases not looked at yet."""
    if job.versions is None:
        return
    for library, release in job.versions.given:
        if release_of(release) > release_of(checked(library)):
            yield PlanWarning(
                code="release_unchecked", severity="info", field=f"{library}_version",
                message=f"{_WORDS[library]} {release} is newer than {checked(library)}, with which these files were checked.",
                fix=f"Read the release notes since {checked(library)}, or use it.",
            )  # fmt: skip
        yield from _faults(job, library, release)
    option = pinned_option(_newest(job))
    if option and (rounding := job.versions.lacking("torch", f"PYTORCH_CUDA_ALLOC_CONF {option}")):
        yield _lacking(rounding, job.versions.of("torch"))
    if job.settings.framework == "deepspeed":
        newest = json.loads(deepspeed_config(_newest(job)).text)
        yield from (_lacking(key, job.versions.of(key.library)) for key in later_keys(newest, job))


def _faults(job: EmitJob, library: str, release: str) -> Iterator[PlanWarning]:
    for fault in load_faults():
        used = fault.library == library and job.settings.strategy in fault.strategies and job.settings.grad_accum > 1
        if used and fault.concerns(release):
            yield PlanWarning(
                code="release_fault", severity="error", field=f"{library}_version",
                message=f"{_WORDS[library]} {fault.since} up to {fault.fixed}: {fault.says}, {job.settings.grad_accum} micro-steps here.",
                fix=f"Use {_WORDS[library]} {fault.fixed} or newer, or {fault.instead}.",
            )  # fmt: skip


def _newest(job: EmitJob) -> EmitJob:
    return replace(job, versions=None)


def _lacking(key: Key, release: str) -> PlanWarning:
    instead = {
        "script": f"ds_train.py calls {key.replaced_by.removesuffix(' in the script')} instead; a script of your own must do the same.",
        "drop": "The file leaves it out.",
        "weaker": "The file has it all the same.",
    }
    return PlanWarning(
        code="release_lacks", severity="info" if key.below == "script" else "warning", field=f"{key.library}_version",
        message=f"{_WORDS[key.library]} {release} does not know {key.name}, which came with {key.since}. Without it {key.loses}. "
        f"{instead[key.below or 'drop']}",
        fix=f"Use {key.replaced_by}, or {_WORDS[key.library]} {key.since} or newer.",
    )  # fmt: skip
