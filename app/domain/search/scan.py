"""Search one pool: scan the whole space in chunks, and evaluate again, flat, the few candidates that are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from app.domain.memory.peak import MemoryTotals, evaluate_totals
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import Evaluation, Table, complexity_of, evaluate_candidates, judge, rejections
from app.domain.search.space import Space, build_space
from app.domain.search.table import grid_columns, outline_of
from app.domain.setup import Array, Columns, Numbers, TrainingSetup, numbers_of
from app.domain.share import Share
from app.domain.speed.step import evaluate_speed

FLAT = 256
"""Candidates up to which evaluating all lines at once costs less than scanning first and evaluating the shown ones again."""

CHUNK = 1 << 14
"""Structures times batches of one chunk: columns of 128 KiB stay in the processor's cache, and memory does not grow with the space."""

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
        evaluation = evaluate_candidates(self.setup, self.constraints, self.space, np.array(list(once), dtype=np.int64))
        return evaluation, [once[candidate] for candidate in candidates]


def search(setup: TrainingSetup, constraints: Constraints, *, timed: bool = True) -> Found:
    """Judge every candidate on one pool.

    Args:
        timed: whether step times are wanted, or only what fits.

    Raises:
        InvalidRequestError: the pins contradict each other, the model or the devices.
    """
    space = build_space(setup, constraints)
    if timed and len(space) <= FLAT:
        flat = evaluate_candidates(setup, constraints, space, np.arange(len(space)))
        return Found(setup=setup, constraints=constraints, space=space, table=flat.table(space.rejected), flat=flat)
    return Found(setup=setup, constraints=constraints, space=space, table=scan(setup, constraints, space, timed=timed), flat=None)


def scan(setup: TrainingSetup, constraints: Constraints, space: Space, *, timed: bool = True) -> Table:
    """Compare all candidates of a space, chunk by chunk."""
    numbers, size = numbers_of(setup.model, setup.recipe), len(space)
    part = _Part(setup, constraints, space, numbers)
    out = {name: np.empty(size, dtype=bool) for name in ("fits", "safe")}
    out |= {name: np.empty(size) for name in ("over_bytes", "host_over_bytes", "nvme_over_bytes", "device_bytes")}
    out["tokens_per_s"] = np.zeros(size)
    for plain in _chunks(space):
        _scan_chunk(part, plain, out, timed=timed)
    over = (out["over_bytes"], out["host_over_bytes"], out["nvme_over_bytes"])
    return Table(**out, **_carried(space), rejected=dict(space.rejected) | rejections(*over))


def _carried(space: Space) -> dict[str, Array]:
    """What the table repeats of each candidate's structure and batch."""
    s, structure = outline_of(space), np.repeat(np.arange(len(space.batches)), space.batches)
    micro, _ = space.mesh_table(batch=int(space.batches.max()))
    columns = {name: getattr(s, name)[structure] for name in ("row", "group", "tp", "pp", "sp", "ep")}
    offloaded = (s.offload_optimizer > 0) | (s.offload_parameters > 0)
    return columns | {
        "replicas": s.replicas[structure],
        "offloaded": offloaded[structure],
        "written": (s.pp * s.sp * s.ep == 1)[structure],
        "complexity": complexity_of(s)[structure],
        "micro_batch": micro[s.mesh[structure], np.arange(len(structure)) - space.first[structure]],
    }


def _chunks(space: Space) -> Iterator[Array]:
    """Structures without quantisation, piped ones apart (they have a last stage as well), a chunk at a time."""
    plain = np.flatnonzero(space.plain == np.arange(len(space.plain)))
    piped = np.array([m.degrees.pipeline_parallel > 1 for m in space.meshes])[space.structures["mesh"][plain]]
    for members in (plain[~piped], plain[piped]):
        if len(members):
            rows = max(1, CHUNK // int(space.batches[members].max()))
            yield from np.array_split(members, -(-len(members) // rows))


@dataclass(frozen=True, slots=True)
class _Part:
    """What all chunks share."""

    setup: TrainingSetup
    constraints: Constraints
    space: Space
    numbers: Numbers


def _scan_chunk(part: _Part, plain: Array, out: dict[str, Array], *, timed: bool) -> None:
    """Fill in the candidates of some structures and of those that differ by quantisation only, whose memory is the same."""
    space = part.space
    grid = grid_columns(space, part.setup, part.numbers, plain)
    totals = evaluate_totals(part.setup, part.numbers, grid)
    verdicts = judge(part.setup, part.constraints, grid, totals)
    place = np.full(len(space.plain), -1)
    place[plain] = np.arange(len(plain))
    row = place[space.plain]
    here = np.flatnonzero(row >= 0)
    batches = space.batches[here]
    structure = np.repeat(here, batches)
    batch = np.arange(len(structure)) - np.repeat(np.cumsum(batches) - batches, batches)
    candidates, at = space.first[structure] + batch, (row[structure], batch)
    for name in ("fits", "safe", "over_bytes", "host_over_bytes", "nvme_over_bytes"):
        out[name][candidates] = _entries(getattr(verdicts, name), at, grid.shape)
    out["device_bytes"][candidates] = _entries(totals.device, at, grid.shape)
    if timed:
        kept = np.flatnonzero(out["fits"][candidates])
        out["tokens_per_s"][candidates[kept]] = _tokens_per_s(part, grid, totals, structure[kept], (at[0][kept], batch[kept]))


def _tokens_per_s(part: _Part, grid: Columns, totals: MemoryTotals, structure: Array, at: tuple[Array, Array]) -> Array:
    """Speed of candidates that fit, flat: row of the grid and number of the batch are given for each."""
    if not len(structure):
        return np.zeros(0)
    flags = {name: part.space.structures[name][structure] for name in ("qwz", "qgz")}
    taken = {f.name: _entries(getattr(grid, f.name), at, grid.shape) for f in fields(Columns) if f.name not in flags}
    share = Share(**{f.name: _entries(getattr(totals.share, f.name), at, grid.shape) for f in fields(Share)})
    speed = evaluate_speed(part.setup, part.numbers, Columns(**taken, **flags), share)
    tokens_per_s: Array = speed.tokens_per_step / speed.step_s
    return tokens_per_s


def _entries(values: Array, at: tuple[Array, Array], shape: tuple[int, ...]) -> Array:
    """Entries of a grid, whichever of its axes the values have."""
    values = np.asarray(values)
    if values.ndim < 2:
        return np.broadcast_to(values, at[0].shape)
    return values[at[0], 0] if values.shape[1] == 1 < shape[1] or shape[1] == 1 else values[at]
