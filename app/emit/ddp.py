"""ddp_train.py: a training script on DistributedDataParallel."""

from __future__ import annotations

from app.domain.plan import Artifact
from app.emit.job import EmitJob
from app.emit.scripts import TORCH_IMPORTS, Script, write_script


def ddp_script(job: EmitJob) -> Artifact:
    """Write ddp_train.py.

    Raises:
        ConflictError: a model or an axis of parallelism these scripts cannot set up.
    """
    imports = (*TORCH_IMPORTS, "torch.nn.parallel:DistributedDataParallel")
    return write_script(job, Script(filename="ddp_train.py", launcher="ddp", imports=imports, extra={}))
