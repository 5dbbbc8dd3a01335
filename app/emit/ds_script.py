"""ds_train.py: a training script on deepspeed.initialize, for the ds_config.json beside it."""

from __future__ import annotations

from app.domain.plan import Artifact
from app.emit.job import EmitJob
from app.emit.recipe import zero_stage
from app.emit.scripts import Script, write_script


def deepspeed_script(job: EmitJob) -> Artifact:
    """Write ds_train.py.

    Raises:
        ConflictError: a model or an axis of parallelism these scripts cannot set up.
    """
    stage = zero_stage(job)
    imports = ("deepspeed", *(("transformers.integrations:HfDeepSpeedConfig",) if stage == 3 else ()))
    return write_script(job, Script(filename="ds_train.py", launcher="deepspeed", imports=imports, extra={"stage": stage}))
