"""What a plan says of its checkpoints. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.plan import TermResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFiles:
    """Files of one kind in one save.

    Attributes:
        name: as it is written, with what differs from file to file in braces.
        count: how many of them.
        bytes: tensors in all of them together; headers of a few KB a tensor come on top.
        largest_bytes: tensors in the largest of them.
        holds: what is in them.
    """

    name: str
    count: int
    bytes: int
    largest_bytes: int
    holds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A way from the checkpoint to files that other programs read.

    Attributes:
        title: what it gives.
        commands: what to run, a line each; ``STEP`` stands for the folder of one save.
        host: host memory of the one process that does it.
        output_bytes: tensors it writes.
    """

    title: str
    commands: tuple[str, ...]
    host: TermResult
    output_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """What going on from a checkpoint needs.

    Attributes:
        same: on the same number of ranks.
        other: on another number.
        commands: what to run before the latter; none where the checkpoint loads anywhere.
        disk_bytes: room the conversion takes beside the checkpoint.
    """

    same: str
    other: str
    commands: tuple[str, ...] = ()
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """What running the trained model needs: its weights in 16 bits, and a cache that grows with every token."""

    weights: TermResult
    cache_per_token: TermResult | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Files and bytes of one save, and how to go on from it.

    Attributes:
        layout: ``dcp`` (torch.distributed.checkpoint) or ``deepspeed``.
        written_by: the script and the call that write it.
        files: by kind; their bytes add up to ``per_save_bytes``, as the terms do.
        per_rank_bytes: the most one rank writes.
        notes: what is easy to get wrong.
    """

    layout: str
    written_by: str
    files: tuple[SavedFiles, ...]
    terms: tuple[TermResult, ...]
    per_save_bytes: int
    per_rank_bytes: int
    exports: tuple[Export, ...]
    resume: Resume
    inference: Inference
    notes: tuple[str, ...] = ()
