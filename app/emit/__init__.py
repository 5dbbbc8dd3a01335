"""The files that carry a plan out: which belong to which framework, and how to write them all."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.errors import ConflictError
from app.domain.plan import Artifact
from app.emit.accelerate import accelerate_config
from app.emit.ddp import ddp_script
from app.emit.deepspeed import deepspeed_config
from app.emit.ds_script import deepspeed_script
from app.emit.fsdp2 import fsdp2_script
from app.emit.hf_args import training_arguments
from app.emit.job import EmitJob
from app.emit.launch import launch_of, launch_script, train_script

FILE_KINDS: dict[str, tuple[str, ...]] = {
    "ds_config.json": ("deepspeed",),
    "ds_train.py": ("deepspeed",),
    "fsdp2_train.py": ("fsdp2",),
    "ddp_train.py": ("ddp",),
    "accelerate.yaml": ("deepspeed", "fsdp2", "ddp"),
    "launch.sh": ("deepspeed", "fsdp2", "ddp"),
}
"""Every file the product writes, and the frameworks it belongs to."""

_WRITERS: dict[str, Callable[[EmitJob], Artifact]] = {
    "ds_config.json": deepspeed_config,
    "ds_train.py": deepspeed_script,
    "fsdp2_train.py": fsdp2_script,
    "ddp_train.py": ddp_script,
    "accelerate.yaml": accelerate_config,
    "launch.sh": launch_script,
}


def files_for(job: EmitJob) -> tuple[Artifact, ...]:
    """All files of the plan's framework, without the training script where none can be written for it."""
    script = train_script(job)
    files = [script] if script else []
    for name in ("ds_config.json", "accelerate.yaml"):
        if job.settings.framework in FILE_KINDS[name]:
            files.append(_WRITERS[name](job))
    return (*files, launch_of(job, script))


def trainer_files(job: EmitJob) -> tuple[Artifact, ...]:
    """The same plan in the Hugging Face Trainer's dialect: what differs from, or comes beside, the plan's own files.

    Raises:
        InvalidRequestError: DeepSpeed cannot do what the plan says.
    """
    config = (deepspeed_config(job, dialect="hf_auto"),) if job.settings.framework == "deepspeed" else ()
    try:
        return (training_arguments(job), *config)
    except ConflictError:
        return config


def file_for(job: EmitJob, filename: str) -> Artifact:
    """One file of the plan.

    Raises:
        ConflictError: the file belongs to another framework, or no training script can be written for this plan.
    """
    framework = job.settings.framework
    if framework not in FILE_KINDS.get(filename, ()):
        own = ", ".join(name for name, frameworks in FILE_KINDS.items() if framework in frameworks)
        raise ConflictError(f"{filename} does not belong to a {framework} plan; its files are {own}")
    return _WRITERS[filename](job)


__all__ = ["FILE_KINDS", "EmitJob", "deepspeed_config", "file_for", "files_for", "trainer_files"]
