"""launch.sh: the command that starts the training on every node, with the environment the plan relies on."""

from __future__ import annotations

from app.domain.errors import ConflictError
from app.domain.memory.pinned import ROUND_LIMIT_MIB
from app.domain.plan import Artifact
from app.emit.ddp import ddp_script
from app.emit.ds_script import deepspeed_script
from app.emit.fsdp2 import fsdp2_script
from app.emit.job import EmitJob
from app.emit.recipe import header
from app.emit.render import render


def train_script(job: EmitJob) -> Artifact | None:
    """The framework's training script; None where the plan needs a trainer of the user's own."""
    writer = {"deepspeed": deepspeed_script, "fsdp2": fsdp2_script, "ddp": ddp_script}[job.settings.framework]
    try:
        return writer(job)
    except ConflictError:
        return None


def launch_script(job: EmitJob) -> Artifact:
    """Write launch.sh: one node starts by itself, several need MASTER_ADDR, and arguments go on to the script."""
    return launch_of(job, train_script(job))


def launch_of(job: EmitJob, script: Artifact | None) -> Artifact:
    """Write launch.sh for a training script that is written already, or for the user's own."""
    s = job.settings
    offloaded = (s.offload_optimizer, s.offload_parameters)
    text = render(
        "launch.sh.j2",
        s=s,
        header=header(job),
        script=script.filename if script else None,
        host_work=offloaded != ("none", "none"),
        pinned=f"{pinned_option(job)}:{ROUND_LIMIT_MIB}" if pinned_option(job) else "",
        pinned_mb=ROUND_LIMIT_MIB,
        nvme_path=job.nvme_path if "nvme" in offloaded else None,
    )
    return Artifact(filename="launch.sh", media_type="text/x-shellscript", text=text)


ROUND, CACHE = "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"


def pinned_option(job: EmitJob) -> str:
    """The allocator's option that leaves large pinned blocks at their size; empty where nothing is pinned or torch has none.

    Blocks that are kept for reuse at sizes of their own are looked up by power of two, and torch up to 2.13 does not look whether the
    block it finds is large enough (pytorch/pytorch#192722). So large blocks are given back when freed, except where the only ones
    that come and go are the checkpoints of equal blocks.
    """
    s = job.settings
    offloaded = (s.offload_optimizer, s.offload_parameters) != ("none", "none")
    if not offloaded and not s.activation_offload:
        return ""
    widths = {stack.block.hidden_size for stack in job.model.stacks}
    alike = not offloaded and s.activation_checkpointing == "full" and len(widths) == len({x.part for x in job.model.stacks}) == 1
    option = ROUND if alike else CACHE
    unknown = job.versions is not None and job.versions.lacking("torch", f"PYTORCH_CUDA_ALLOC_CONF {option}") is not None
    return "" if unknown else option
