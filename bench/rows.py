"""Published measurements as requests, and what the planner predicts for them, in process."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from app.domain.plan import Candidate
from app.domain.search.planner import make_plan
from app.services.request import PlanRequest
from app.services.resolve import Resolved, resolve

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"
MEASUREMENTS = SHARED / "data" / "measurements_public.csv"
SIMULATED = SHARED / "data" / "simulated_public.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """One published run, the request that describes it, and the scorer's reading of it."""

    csv: dict[str, str]
    resolved: Resolved
    counter: str
    family: str
    three_d: bool
    speed_known: bool


def scorer(name: str) -> ModuleType:
    """A module of the scorer that lies beside the data."""
    folder = SHARED / "score"
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"score_{name}", folder / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured_rows(*, three_d: bool = False) -> Iterator[Row]:
    """Every public row that leaves nothing open, low-confidence ones excluded as the scorer does."""
    rows = scorer("rows")
    with MEASUREMENTS.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["confidence"] == "low" or rows.is_3d(row) != three_d:
                continue
            try:
                body: dict[str, Any] = rows.request(row)
            except rows.Unscorable:
                continue
            resolved = resolve(PlanRequest.model_validate(body))
            yield Row(row, resolved, rows.counter(row), rows.family(row), three_d, rows.speed_known(row))


def simulated_rows() -> Iterator[tuple[dict[str, str], Resolved]]:
    """Every public simulated step the request language has words for, and the request that describes it."""
    simulated = scorer("simulated")
    with SIMULATED.open(newline="") as file:
        for row in csv.DictReader(file):
            body = simulated.request(row)
            if body is not None:
                yield row, resolve(PlanRequest.model_validate(body))


def predict(row: Row) -> Candidate:
    """The candidate the planner judges for a pinned row."""
    return make_plan(row.resolved.question).recommended


def gpu_counter(candidate: Candidate, counter: str) -> int:
    """One of the three totals, by the contract's name."""
    return int(getattr(candidate.gpu, counter))
