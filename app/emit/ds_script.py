"""ds_train.py: a training script on deepspeed.initialize, for the ds_config.json beside it."""

from __future__ import annotations

from app.domain.plan import Artifact
from app.emit.deepspeed_zero import moe_leaf_classes
from app.emit.job import EmitJob
from app.emit.recipe import zero_stage
from app.emit.releases import leaf_calls
from app.emit.scripts import Script, write_script


def deepspeed_script(job: EmitJob) -> Artifact:
    """Write ds_train.py.

    Raises:
        ConflictError: a model or an axis of parallelism these scripts cannot set up.
    """
    stage = zero_stage(job)
    leaves = moe_leaf_classes(job) if stage == 3 and leaf_calls(job) else []
    imports = ["deepspeed"]
    if stage == 3:
        imports.append("transformers.integrations:HfDeepSpeedConfig")
    if leaves:
        imports.append("deepspeed.utils:set_z3_leaf_modules")
    extra = {"stage": stage, "leaves": leaves}
    return write_script(job, Script(filename="ds_train.py", launcher="deepspeed", imports=tuple(imports), extra=extra))
