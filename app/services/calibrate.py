"""Use case: what runs measured on this deployment say about a plan. Pure lookups in memory; the database is read beside requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app import ENGINE_VERSION
from app.domain.calibrate import NOTHING, Correction, Pair, Part, correction
from app.domain.errors import ShardplanError
from app.services.predicted import Document, parts_of, prediction_of, situation_of
from app.store.measurements import MeasurementRepository, Stamp, StoredMeasurement
from app.store.session import Database

RUNS_READ = 2_000
"""The newest measurements, which calibrate and are shown."""
_LOOK_S, _START_S, _CLOSE_S = 15.0, 1.0, 5.0
_TOTALS = {"allocated": "peak_allocated_bytes", "reserved": "peak_reserved_bytes",
           "reserved_expandable": "peak_reserved_expandable_bytes", "device": "device_bytes", "needed": "needed_bytes"}  # fmt: skip

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """What the runs of one situation say: about fitted bytes, and about fitted seconds."""

    memory: Correction = NOTHING
    time: Correction = NOTHING
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The measurements of a moment, and what they say by situation."""

    stamp: Stamp | None = None
    runs: tuple[StoredMeasurement, ...] = ()
    by_situation: Mapping[str, Corrections] = field(default_factory=dict)


class Calibrator:
    """Corrections from the runs in one database.

    A request takes what is in memory, and waits for nothing: what is older than some seconds is read again by a thread beside it. A change
    made by this process is read at once.
    """

    def __init__(self, database: Database, *, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.enabled = enabled
        self._database, self._clock = database, clock
        self._snapshot = Snapshot()
        self._reading, self._starting, self._look_at = threading.Lock(), threading.Lock(), 0.0
        self._thread: threading.Thread | None = None

    def of(self, document: Document, *, wanted: bool = True) -> dict[str, Any]:
        """The ``calibration`` of an answer: factors, and the figures they make of those in ``recommended``, which stay as they are."""
        if not (self.enabled and wanted):
            return _none("calibration is switched off")
        self.look()
        if not self._snapshot.runs:
            return _none("no runs of such a setup were measured here")
        if document.get("engine_version") != ENGINE_VERSION:
            return _none(f"runs are compared with engine {ENGINE_VERSION}, and this is an answer of {document.get('engine_version')}")
        return calibration(document, self._snapshot.by_situation.get(situation_of(document), Corrections()))

    def runs(self) -> tuple[StoredMeasurement, ...]:
        """The newest measurements, as last read."""
        self.look()
        return self._snapshot.runs

    def look(self) -> None:
        """See to it that what is in memory is read again, if it is old."""
        if self._clock() < self._look_at:
            return
        with self._starting:
            if self._clock() < self._look_at:
                return
            self._look_at = self._clock() + _LOOK_S
            self._thread = threading.Thread(target=self.refresh, name="calibration", daemon=True)
            self._thread.start()

    def start(self) -> None:
        """Read for the first time, and wait a moment for that: a database that does not answer must not hold up a service."""
        self.look()
        self._join(_START_S)

    def close(self) -> None:
        """Wait for a reading that is under way."""
        self._join(_CLOSE_S)

    def _join(self, wait_s: float) -> None:
        if self._thread is not None:
            self._thread.join(wait_s)

    def refresh(self) -> None:
        """Read what the database has, now; where it does not answer, what is known stays."""
        with self._reading:  # one after the other, or an older reading could come in last
            self._read()

    def _read(self) -> None:
        try:
            with self._database.session() as session:
                repository = MeasurementRepository(session)
                stamp = repository.stamp()
                runs = self._snapshot.runs if stamp == self._snapshot.stamp else repository.newest(RUNS_READ)
        except ShardplanError as error:
            log.debug("measurements cannot be read: %s", error.detail)
            return
        except Exception:  # nothing about measurements may end a request, or a thread without a word
            log.exception("unexpected error while reading measurements")
            return
        if stamp != self._snapshot.stamp:
            self._snapshot = Snapshot(stamp=stamp, runs=runs, by_situation=by_situation(runs))
        self._look_at = self._clock() + _LOOK_S


def by_situation(runs: Iterable[StoredMeasurement], engine_version: str = ENGINE_VERSION) -> dict[str, Corrections]:
    """What runs say, those of each situation together; predictions of another engine are not corrected by today's runs, nor the reverse."""
    grouped: dict[str, list[StoredMeasurement]] = {}
    for run in runs:
        if run.engine_version == engine_version and run.predicted.get("situation"):
            grouped.setdefault(run.predicted["situation"], []).append(run)
    return {situation: _corrections(found) for situation, found in grouped.items()}


def _corrections(runs: Sequence[StoredMeasurement]) -> Corrections:
    memory = [pair for run in runs if (pair := memory_pair(run)) is not None]
    seconds = [pair for run in runs if (pair := time_pair(run)) is not None]
    found = {"memory": correction(memory), "time": correction(seconds)}
    used = sum(any(found[name].runs for name in used_for(run)) for run in runs)
    return Corrections(memory=found["memory"], time=found["time"], runs=used)


def memory_pair(run: StoredMeasurement) -> Pair | None:
    """What a run says about fitted bytes: a peak, or by running out of memory that it needed all there is."""
    parts = parts_of(run.predicted, "memory")
    if run.oom:
        room, needed = run.predicted.get("device_memory_bytes"), parts.get("needed")
        return Pair(needed, float(room), at_least=True) if room and needed else None
    predicted = parts.get(counted_as(run))
    return None if predicted is None or run.peak_bytes is None else Pair(predicted, float(run.peak_bytes))


def time_pair(run: StoredMeasurement) -> Pair | None:
    """What a run says about fitted seconds."""
    predicted, measured = parts_of(run.predicted, "time").get("step"), step_of(run)
    return None if predicted is None or measured is None or run.oom else Pair(predicted, measured)


def used_for(run: StoredMeasurement) -> list[str]:
    """Which factors a run has a say in, if its engine is today's."""
    pairs = {"memory": memory_pair(run), "time": time_pair(run)}
    return [name for name, pair in pairs.items() if pair is not None and pair.predicted.tells]


def counted_as(run: StoredMeasurement) -> str:
    """Which predicted total a run's peak is to be compared with.

    What torch reserves depends on whether its segments grow in place. Where a run does not say, the nearer of the two totals: the one
    that corrects less.
    """
    plain, grown = str(run.counter), f"{run.counter}_expandable"
    parts, said = parts_of(run.predicted, "memory"), run.details.get("expandable_segments")
    if grown not in parts or said is False or run.peak_bytes is None:
        return plain
    measured = run.peak_bytes
    return grown if said or abs(parts[grown].total - measured) < abs(parts[plain].total - measured) else plain


def step_of(run: StoredMeasurement) -> float | None:
    """Seconds of a step, measured or from tokens a second."""
    tokens = run.predicted.get("tokens_per_step")
    if run.step_s is None and run.tokens_per_s and tokens:
        return float(tokens) / run.tokens_per_s
    return run.step_s


def calibration(document: Document, said: Corrections) -> dict[str, Any]:
    """The block of an answer that has the corrected figures beside the engine's."""
    if not said.runs:
        return _none("no runs of such a setup were measured here")
    parts = prediction_of(document)
    memory, seconds = parts_of(parts, "memory"), parts_of(parts, "time")
    runs = f"{said.runs} run{'s' if said.runs > 1 else ''}"
    return {
        "runs": said.runs,
        "applied": True,
        "says": f"calibrated by {runs} here",
        "memory": _memory(memory, said.memory) if said.memory.runs else None,
        "time": _time(seconds["step"], said.time, parts["tokens_per_step"]) if said.time.runs else None,
    }


def _memory(parts: Mapping[str, Part], said: Correction) -> dict[str, Any]:
    totals = {key: round(parts[name].corrected(said.factor)) for name, key in _TOTALS.items() if name in parts}
    change = round((said.factor - 1) * parts["device"].fitted)
    return {"factor": said.factor, "runs": said.runs, "bytes": change, "fitted_bytes": round(parts["device"].fitted)} | totals


def _time(step: Part, said: Correction, tokens_per_step: float) -> dict[str, Any]:
    seconds = step.corrected(said.factor)
    rate = tokens_per_step / seconds if seconds else 0.0
    return {"factor": said.factor, "runs": said.runs, "fitted_s": step.fitted, "step_s": seconds, "tokens_per_s": rate}


def _none(says: str) -> dict[str, Any]:
    return {"runs": 0, "applied": False, "says": says, "memory": None, "time": None}
