"""ds_train.py: a training script on deepspeed.initialize, for the ds_config.json beside it."""

from __future__ import annotations

from app.domain.errors import ConflictError
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
    s, stage = job.settings, zero_stage(job)
    if s.tensor_parallel > 1 and s.fused_loss:
        raise ConflictError(
            f"no training script is written for fused_loss with tensor_parallel {s.tensor_parallel} under DeepSpeed: it puts a layer of "
            "its own in place of the output head the loss is fused into; plan with fused_loss false, or with fsdp2"
        )
    leaves = moe_leaf_classes(job) if stage == 3 and leaf_calls(job) else []
    imports = ["deepspeed"]
    if stage == 3:
        imports.append("transformers.integrations:HfDeepSpeedConfig")
    if leaves:
        imports.append("deepspeed.utils:set_z3_leaf_modules")
    extra = {"stage": stage, "leaves": leaves}
    return write_script(job, Script(filename="ds_train.py", launcher="deepspeed", imports=tuple(imports), extra=extra))
