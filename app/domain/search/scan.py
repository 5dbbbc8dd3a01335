"""Search one pool: scan the whole space in chunks, and evaluate again, flat, the few candidates that are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise

import numpy as np

from app.domain.memory.peak import evaluate_totals
from app.domain.search.budget import MOST_OF_A_PROBE, Budget
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import Evaluation, Table, complexity_of, evaluate_candidates, is_offloaded, is_written, judge, rejections
from app.domain.search.space import Space, build_space
from app.domain.search.table import grid_columns, outline_of
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share
from app.domain.speed.step import evaluate_speed

_LARGEST_BLOCK = 31 << 20

CHUNK = 1 << 15
"""Structures times batches of one chunk: enough to make the calls' own cost small, and memory does not grow with the space."""

FEW = 8
"""Candidates of a pinned request, up to which all lines are evaluated at once, with every size, before one is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One pool's searched space."""

    setup: TrainingSetup
    constraints: Constraints
    space: Space
    table: Table
    flat: Evaluation | None

    def show(self, candidates: Sequence[int]) -> tuple[Evaluation, list[int]]:
        """These candidates with everything they cost, and where each is in the evaluation."""
        if self.flat is not None:
            return self.flat, list(candidates)
        once = {candidate: place for place, candidate in enumerate(dict.fromkeys(candidates))}
        evaluation = evaluate_candidates(self.setup, self.constraints, self.space, np.array(list(once), dtype=np.int64), again=1)
        return evaluation, [once[candidate] for candidate in candidates]


def search(setup: TrainingSetup, constraints: Constraints, *, limit: int | None = None, budget: Budget | None = None) -> Found:
    """Judge every candidate on one pool.

    Args:
        limit: candidates at most, where several pools share the bound of a search.
        budget: says when to stop; what was not judged by then is no part of the table.

    Raises:
        InvalidRequestError: the pins contradict each other, the model or the devices.
    """
    space = build_space(setup, constraints, limit=limit)
    if len(space) <= FEW:
        flat = evaluate_candidates(setup, constraints, space, np.arange(len(space)), again=len(space))
        return Found(setup=setup, constraints=constraints, space=space, table=flat.table(space.rejected), flat=flat)
    return Found(setup=setup, constraints=constraints, space=space, table=scan(setup, constraints, space, budget=budget), flat=None)


def any_fits(setup: TrainingSetup, constraints: Constraints, budget: Budget, *, surely: bool) -> bool:
    """Whether any candidate on one pool fits, or surely does: no further than to the first that is found.

    Where scripts are written for some, only those count whose script fits.

    Raises:
        InvalidRequestError: the pins contradict each other, the model or the devices.
    """
    _keep_freed_memory()
    # Memory never shrinks as the micro-batch grows, but for the copy that accumulating takes: the smallest fits, or the one without.
    space = build_space(setup, constraints, 2, MOST_OF_A_PROBE)
    part, out, spans = _Part(setup, constraints, space), _blank(len(space)), list(_chunks(space))
    hopeless, written = _hopeless(part, spans), np.repeat(is_written(setup, outline_of(space)), space.batches)
    # Those on a disk of which none is known need more than there is, whatever the figures are.
    for span in (span for span in spans if span not in hopeless):
        _scan_chunk(part, span, out, timed=False)
        budget.probes -= int(space.batches[slice(*span)].sum())
        fitting = out["safe"] if surely else out["fits"]
        if (fitting & out["script_fits"] & written if written.any() else fitting).any():
            return True
    return False


def scan(setup: TrainingSetup, constraints: Constraints, space: Space, *, prune: bool = True, budget: Budget | None = None) -> Table:
    """Compare all candidates of a space, chunk by chunk.

    Args:
        prune: pass over structures that need a disk of which none is known, for all their batches at once. Where nothing else fits
            they are evaluated after all, since one of them may be what comes nearest.
        budget: says after each chunk whether to go on.
    """
    _keep_freed_memory()
    part, out, spans = _Part(setup, constraints, space), _blank(len(space)), list(_chunks(space))
    hopeless = _hopeless(part, spans) if prune else []
    end = spans[-1][1]
    for span in spans:
        if span in hopeless:
            continue
        if budget is not None and span[0] and not budget.go_on():
            end = span[0]
            break
        _scan_chunk(part, span, out)
    if hopeless and end == spans[-1][1] and not out["fits"].any():
        for span in hopeless:
            _scan_chunk(part, span, out)
    judged = len(space) if end == spans[-1][1] else int(space.first[end])
    if budget is not None and judged < len(space):
        undone = f"{judged:,} of {len(space):,} combinations on {setup.pool.world_size:,} GPUs were judged, simpler ones first"
        budget.stop(undone, cut=True)
    out, carried = ({name: column[:judged] for name, column in some.items()} for some in (out, _carried(setup, space)))
    carried["written"] &= out.pop("script_fits")
    over = (out["over_bytes"], out["host_over_bytes"], out["nvme_over_bytes"])
    return Table(**out, **carried, rejected=dict(space.rejected) | rejections(*over))


def _blank(size: int) -> dict[str, Array]:
    """Columns of a table as they are for what has not been judged."""
    out = {name: np.zeros(size, dtype=bool) for name in ("fits", "safe", "script_fits")}
    out |= {name: np.full(size, np.inf) for name in ("over_bytes", "host_over_bytes", "nvme_over_bytes", "device_bytes")}
    return out | {"tokens_per_s": np.zeros(size)}


def _hopeless(part: _Part, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of structures on NVMe, where no disk is known and none is asked for."""
    pinned = "nvme" in (part.constraints.offload_optimizer, part.constraints.offload_parameters)
    if pinned or part.setup.pool.node.nvme_bytes is not None:
        return []
    return [span for span in spans if _on_disk(part.space)[span[0]]]


def _on_disk(space: Space) -> Array:
    on_disk: Array = (space.structures["offload_optimizer"] == 2) | (space.structures["offload_parameters"] == 2)
    return on_disk


@cache
def _keep_freed_memory() -> None:
    """Let malloc keep what a chunk frees for the next one. glibc hands blocks above 128 KiB back to the kernel, and half the time
    would go into touching fresh pages; it stops doing so for sizes up to that of the largest block that was freed once."""
    np.empty(_LARGEST_BLOCK, dtype=np.uint8)


def _carried(setup: TrainingSetup, space: Space) -> dict[str, Array]:
    """What the table repeats of each candidate's structure and batch."""
    s, structure = outline_of(space), np.repeat(np.arange(len(space.batches)), space.batches)
    columns = {name: getattr(s, name)[structure] for name in ("row", "group", "tp", "pp", "sp", "ep")}
    return columns | {
        "replicas": s.replicas[structure],
        "offloaded": is_offloaded(s)[structure],
        "written": is_written(setup, s)[structure],
        "complexity": complexity_of(s)[structure],
        "micro_batch": space.micro_batch[s.mesh[structure], np.arange(len(structure)) - space.first[structure]],
    }


def _chunks(space: Space) -> Iterator[tuple[int, int]]:
    """Ranges of structures. Those with stages are apart (they have a last one as well), and so are those on NVMe; quantised ones are
    with those they are like."""
    size, most = len(space.batches), int(space.batches.max())
    piped = np.array([m.degrees.pipeline_parallel > 1 for m in space.meshes])[space.structures["mesh"]]
    kind = 2 * _on_disk(space) + piped
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), size]
    for start, end in pairwise(edges):
        distinct = start + np.flatnonzero(space.plain[start:end] == np.arange(start, end))
        yield from pairwise([*distinct[:: max(1, CHUNK // most)].tolist(), end])


@dataclass(frozen=True, slots=True)
class _Part:
    """What all chunks share."""

    setup: TrainingSetup
    constraints: Constraints
    space: Space


def _scan_chunk(part: _Part, span: tuple[int, int], out: dict[str, Array], *, timed: bool = True) -> None:
    """Fill in the candidates of a range of structures; those that differ by quantisation only share a row of the grid."""
    space, here = part.space, slice(*span)
    numbers = np.arange(*span)
    distinct = space.plain[here] == numbers
    grid = grid_columns(space, part.setup, part.setup.numbers, numbers[distinct])
    totals = evaluate_totals(part.setup, part.setup.numbers, grid)
    verdicts = judge(part.setup, part.constraints, grid, totals)
    batches, first = space.batches[here], space.first[here]
    structure = np.repeat(np.arange(len(batches)), batches)
    start = int(first[0])
    row = np.cumsum(distinct) - 1
    at = _At(row=row[structure], place=np.arange(len(structure)) + (row * grid.shape[1] - first + start)[structure])
    candidates = slice(start, start + len(structure))
    for name in ("fits", "safe", "script_fits", "over_bytes", "host_over_bytes", "nvme_over_bytes"):
        out[name][candidates] = at.of(getattr(verdicts, name))
    out["device_bytes"][candidates] = at.of(totals.device)
    if timed:
        kept = np.flatnonzero(out["fits"][candidates])
        if len(kept):
            flags = {name: space.structures[name][here][structure[kept]] for name in ("qwz", "qgz")}
            speeds = _tokens_per_s(part, grid, totals.share, at.some(kept), flags)
            out["tokens_per_s"][candidates][kept] = speeds


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """Where candidates are in a grid: their rows, and their places where it is laid out flat."""

    row: Array
    place: Array

    def of(self, values: Array) -> Array:
        """The candidates' entries, whichever axes of the grid the values have."""
        values = np.asarray(values)
        if values.ndim < 2:
            return np.broadcast_to(values, self.row.shape)
        if values.shape[1] == 1:
            return values.ravel()[self.row]
        return values.ravel()[self.place]

    def some(self, kept: Array) -> _At:
        """Of these candidates, some."""
        return _At(row=self.row[kept], place=self.place[kept])


def _tokens_per_s(part: _Part, grid: Columns, share: Share, at: _At, flags: dict[str, Array]) -> Array:
    """Speed of candidates that fit, flat."""
    taken = {f.name: at.of(getattr(grid, f.name)) for f in fields(Columns) if f.name not in flags}
    shares = Share(**{f.name: at.of(getattr(share, f.name)) for f in fields(Share)})
    speed = evaluate_speed(part.setup, part.setup.numbers, Columns(**taken, **flags), shares)
    tokens_per_s: Array = speed.tokens_per_step / speed.step_s
    return tokens_per_s
