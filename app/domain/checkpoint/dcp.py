"""Checkpoints of torch.distributed.checkpoint, as fsdp2_train.py and ddp_train.py write them."""

from __future__ import annotations

import math

from app.domain.checkpoint import terms
from app.domain.checkpoint.result import Export, Resume, SavedFiles
from app.domain.checkpoint.situation import Situation
from app.domain.checkpoint.tensors import largest_shard_frac, tensor_count
from app.domain.checkpoint.terms import line, total_bytes
from app.domain.plan import TermResult
from app.domain.recipe.precision import dtype_bytes

COUNTING = ("adamw", "adafactor")
"""Optimizers of torch that keep their step as a tensor beside every weight."""

GENERATOR_BYTES = 16
SCRIPTS = {"fsdp2": "fsdp2_train.py", "ddp": "ddp_train.py"}


def dcp_terms(case: Situation) -> tuple[TermResult, ...]:
    """What one save writes, over all ranks."""
    n, model = case.numbers, case.model
    trained, each = n.trainable, case.param_bytes
    found = [line(terms.saved_weight_bytes, "adapters" if case.adapted else "parameters", params=trained, bytes_each=each)]
    if model.tied_embeddings and trained == n.total and not case.adapted:
        found.append(line(terms.saved_tied_bytes, "parameters", params=n.head, bytes_each=each))
    found.append(line(terms.saved_moment_bytes, "optimizer_states", params=trained, bytes_each=case.state_bytes))
    if case.recipe.optimizer in COUNTING:
        found.append(line(terms.saved_counter_bytes, "optimizer_states", tensors=tensor_count(case.tensors), bytes_each=4))
    found.append(line(terms.saved_generator_bytes, "overhead", ranks=case.settings.world_size, bytes_each=GENERATOR_BYTES))
    return tuple(t for t in found if t.value)


def dcp_files(case: Situation) -> tuple[SavedFiles, ...]:
    """One file a rank, and two small ones."""
    s, found = case.settings, dcp_terms(case)
    states = total_bytes(t for t in found if t.category == "optimizer_states") if s.divides_states else 0
    total = total_bytes(found) - states
    # Copies of a tensor are written by whichever of the ranks that hold it has the least to write.
    spread = s.strategy == "hsdp" or s.framework == "ddp" or s.tensor_parallel > 1
    frac = 1 / s.world_size if spread else largest_shard_frac(case.tensors, s.shard_group_size)
    holds = "adapters" if case.adapted else "weights"
    holds += "" if states else ", their optimizer states" if case.adapted else ", optimizer states"
    rows = [("__{rank}_0.distcp", s.world_size, total, f"{holds} and random generators, each rank its part")]
    rows.append((".metadata", 1, 0, "where every tensor lies, about 0.4 KB for each"))
    if case.scripted:
        rows.append(("state.json", 1, 0, "step, ranks, global batch; written last"))
    files = [
        SavedFiles(name=name, count=count, bytes=size, largest_bytes=min(size, math.ceil(size * frac)), holds=words)
        for name, count, size, words in rows
    ]
    if states:
        words = "every rank's optimizer states, sent to rank 0"
        files.insert(0, SavedFiles(name="optimizer-0.pt", count=1, bytes=states, largest_bytes=states, holds=words))
    return tuple(files)


def dcp_exports(case: Situation) -> tuple[Export, ...]:
    """From the folder to a model (or adapter) folder, where a script does that, and to one file of everything."""
    total = total_bytes(dcp_terms(case))
    whole = Export(
        title="One torch file of everything, optimizer states too",
        commands=("python -m torch.distributed.checkpoint.format_utils dcp_to_torch checkpoints/STEP checkpoint.pt",),
        host=line(terms.whole_host_bytes, "overhead", "export", checkpoint_bytes=total),
        output_bytes=total,
    )
    return (_folder(case), whole) if case.scripted else (whole,)


def _folder(case: Situation) -> Export:
    n, loaded = case.numbers, 2 if case.adapted else case.param_bytes
    return Export(
        title="An adapter folder" if case.adapted else f"A model folder in {case.dtypes.compute}",
        commands=(f"python {SCRIPTS[case.settings.framework]} --save-dir checkpoints --export trained",),
        host=line(terms.model_host_bytes, "overhead", "export", params=n.total, largest_tensor=n.largest_tensor, bytes_each=loaded),
        output_bytes=round(n.trainable * case.param_bytes if case.adapted else n.total * dtype_bytes(case.dtypes.compute)),
    )


def dcp_resume(case: Situation) -> Resume:
    """A checkpoint loads on any number of ranks; what depends on them is the batch and the random streams."""
    s = case.settings
    if not case.scripted:
        again = "torch.distributed.checkpoint.load into the sharded state dicts"
        return Resume(same=f"{again}.", other=f"{again} as well: tensors are cut anew while they load.")
    needs = f"--global-batch {s.global_batch} must stay, and be a multiple of micro_batch × data ranks"
    return Resume(
        same="--resume finds the newest complete save and goes on, dropout included.",
        other=f"--resume as well: tensors are cut anew while they load, also between DDP, FSDP2 and HSDP. {needs}; dropout draws anew.",
    )


def dcp_notes(case: Situation) -> tuple[str, ...]:
    """What is easy to get wrong."""
    found = ["Every rank must reach the save; a folder without state.json was cut off while it was written."] if case.scripted else []
    if case.settings.divides_states:
        found.append("Optimizer states are gathered into rank 0's host memory, and read whole by every rank that resumes.")
    if case.adapted:
        found.append("The frozen base is not saved: keep the repository or folder it was loaded from.")
    return tuple(found)
