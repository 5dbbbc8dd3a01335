"""ddp_train.py: a training script on DistributedDataParallel."""

from __future__ import annotations

from app.domain.errors import ConflictError
from app.domain.plan import Artifact
from app.emit.job import EmitJob
from app.emit.scripts import STATE_DICT, TORCH_IMPORTS, Script, write_script


def ddp_script(job: EmitJob) -> Artifact:
    """Write ddp_train.py.

    Raises:
        ConflictError: a model, a setting or an axis of parallelism these scripts cannot set up.
    """
    s = job.settings
    if s.tensor_parallel > 1:
        raise ConflictError(f"no DDP script is written for tensor_parallel {s.tensor_parallel}; plan with fsdp2 instead")
    if s.optimizer_in_backward:
        raise ConflictError("DDP reduces a gradient after its hooks ran, so optimizer_in_backward cannot be used with it")
    imports = [*TORCH_IMPORTS, "torch.nn.parallel:DistributedDataParallel"]
    if s.divides_states:
        imports = [name for name in imports if not name.endswith("et_state_dict")]
        imports += [f"{STATE_DICT}:get_model_state_dict", f"{STATE_DICT}:set_model_state_dict"]
        imports.append("torch.distributed.optim:ZeroRedundancyOptimizer")
    return write_script(job, Script(filename="ddp_train.py", launcher="ddp", imports=tuple(imports), extra={}))
