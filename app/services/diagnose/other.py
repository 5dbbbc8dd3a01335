"""Answers about what is neither memory nor speed: batches that do not add up, collectives that waited, disks, and nothing at all."""

from __future__ import annotations

from app.services.diagnose import missing
from app.services.diagnose.case import Case
from app.services.diagnose.result import Diagnosis, Remedy


def batch_mismatch(case: Case) -> Diagnosis:
    """DeepSpeed's check of the three batch sizes."""
    batch, micro, accum, world = case.facts.batch or (0, 0, 0, 0)
    product, ranks = micro * accum * world, case.ranks
    counted = f"{world} rank{'s' if world != 1 else ''}"
    cause = f"DeepSpeed counts {counted}: train_batch_size {batch} is not {micro} × {accum} × {world} = {product}."
    remedies = [Remedy(label="leave train_batch_size out, DeepSpeed works it out", settings={"train_batch_size": None}, frees_bytes=None,
                       step_s_change=None, enough=True, why=f"It is then {product} on {world} ranks.")]  # fmt: skip
    fits = batch // max(1, micro * accum)
    if micro * accum and batch % (micro * accum) == 0:
        why = f"{batch} = {micro} × {accum} × {fits}: the file is written for {fits} ranks, and {world} started."
        start = Remedy(label=f"start {fits} ranks", settings={"num_gpus": fits}, frees_bytes=None, step_s_change=None, enough=True, why=why)
        remedies.insert(0, start) if fits > world else remedies.append(start)
    notes = (
        ["Each process believes it is alone: start with torchrun, deepspeed or accelerate launch, not with python."] if world == 1 else []
    )
    if ranks and ranks != world:
        notes.append(f"The request has {ranks} GPUs and {world} ranks started.")
    return Diagnosis(cause=cause, device="none", moment="initialisation", tensor=None, confidence_frac=0.95, remedies=tuple(remedies),
                     would_not_help=("Less memory, other buckets or another stage: the check is on batch sizes only.",),
                     notes=tuple(notes))  # fmt: skip


def collective_timeout(case: Case) -> Diagnosis:
    """A collective that one rank waited for in vain."""
    return Diagnosis(
        cause="A collective waited until it timed out: another rank died, hung or took another path before.",
        device="none", moment=case.facts.phase or "reduction", tensor=None, confidence_frac=0.5,
        remedies=(
            Remedy(label="a longer timeout", settings={"ddp_timeout": 7200}, frees_bytes=None, step_s_change=None, enough=False,
                   why="Helps only where one rank really works for that long (tokenising, saving, loading from a slow disk)."),
        ),
        would_not_help=("More memory or fewer tokens, unless another rank's log has an out-of-memory error.",),
        missing=(
            "The first error over all ranks: grep -n -m1 -E 'Error|Killed' logs/*/*/*/stderr.log, after torchrun --redirects 3.",
            "Which collective every rank was in: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1.",
        ),
        notes=("With experts under ZeRO-3, ranks that route differently gather different weights: declare the block a leaf module.",),
    )  # fmt: skip


def disk_full(case: Case) -> Diagnosis:
    """A disk, or the buffers in front of it, that is full."""
    ran = case.ran
    swap = "swap buffers" in case.facts.said.lower()
    cause = "DeepSpeed ran out of swap buffers in front of the disk." if swap else "A disk ran full."
    if ran is not None and case.complete and ran.candidate.nvme.peak_bytes:
        cause = f"{cause[:-1]}; the offloaded states take {ran.candidate.nvme.peak_bytes / 1e9:,.0f} GB of disk a node."
    remedies = (Remedy(label="more buffers", settings={"offload_optimizer.buffer_count": 8}, frees_bytes=None, step_s_change=None,
                       enough=True,
                       why="Adam takes 4, with reads or writes pipelined 8, with both 12."),) if swap else ()  # fmt: skip
    return Diagnosis(cause=cause, device="nvme", moment=case.facts.phase, tensor=None, confidence_frac=0.7, remedies=remedies,

                     missing=("Which file system is full: df -h nvme_path the checkpoint's folder /dev/shm.",))  # fmt: skip


def nothing(case: Case) -> Diagnosis:
    """A text that says nothing useful: what is missing, and the command that gives it."""
    return Diagnosis(
        cause="The text names no allocation that failed, no process that was killed and no time of a step.", device="none",
        moment=case.facts.phase, tensor=None, confidence_frac=0.0, missing=missing.NO_LOG,
    )  # fmt: skip
