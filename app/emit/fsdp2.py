"""fsdp2_train.py: a training script on PyTorch's fully_shard."""

from __future__ import annotations

from app.domain.errors import ConflictError
from app.domain.model.parameters import is_moe
from app.domain.plan import Artifact
from app.emit.job import EmitJob
from app.emit.recipe import TORCH_DTYPES, compute_dtype, fsdp_offload
from app.emit.scripts import STATE_DICT, TORCH_IMPORTS, Script, write_script

FSDP = "torch.distributed.fsdp"
PARALLEL = "torch.distributed.tensor.parallel"


def fsdp2_script(job: EmitJob) -> Artifact:
    """Write fsdp2_train.py.

    Raises:
        ConflictError: a model, an adapter or an axis of parallelism these scripts cannot set up.
    """
    if job.adapter and job.adapter.get("kind") == "qlora":
        raise ConflictError(
            "no fully_shard script is written for QLoRA: sharding replaces the quantised tensors and their scales are "
            "lost; use accelerate.yaml with a trainer that handles this, or plan with DeepSpeed or DDP"
        )
    s = job.settings
    hsdp = s.strategy == "hsdp"
    words = f"{s.dp_replicate} copies, each sharded over {s.dp_shard} ranks" if hsdp else "one line, sharded over all"
    extra = {
        "hsdp": hsdp,
        "reduce_dtype": TORCH_DTYPES[s.reduce_dtype],
        "mesh_words": f"{words}, matrices split over {s.tensor_parallel}" if s.tensor_parallel > 1 else words,
    }
    return write_script(job, Script(filename="fsdp2_train.py", launcher="fsdp2", imports=_imports(job), extra=extra))


def _imports(job: EmitJob) -> tuple[str, ...]:
    s = job.settings
    wanted = [*TORCH_IMPORTS, "collections:Counter", f"{FSDP}:fully_shard", f"{STATE_DICT}:set_model_state_dict"]
    wanted += ["torch.distributed.device_mesh:DeviceMesh", "torch.distributed.device_mesh:init_device_mesh"]
    if compute_dtype(job) != "fp32":
        wanted.append(f"{FSDP}:MixedPrecisionPolicy")
    if fsdp_offload(job):
        wanted.append(f"{FSDP}:CPUOffloadPolicy")
    if is_moe(job.model):
        wanted.append("torch.distributed.tensor:Shard")
    if s.tensor_parallel > 1:
        wanted += [f"{PARALLEL}:{name}" for name in ("ColwiseParallel", "RowwiseParallel", "parallelize_module")]
    return tuple(wanted)
