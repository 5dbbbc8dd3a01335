"""Fit the constants that no specification gives, on the public measurements only: ``make fit``.

Every source family weighs the same, however many rows it has. What is fitted, and within which range, stands in
app/catalog/fitted.json; the result is written back there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from app.catalog.data import document
from app.catalog.fitted import fitted_rates
from app.domain.errors import InvalidRequestError
from app.domain.memory.peak import Memory, evaluate_memory, gathering, pool_peaks
from app.domain.memory.sureness import situation_of
from app.domain.recipe.precision import FRAMEWORKS
from app.domain.search.evaluate import evaluate
from app.domain.setup import Columns, Rates, TrainingSetup, numbers_of
from app.domain.speed.step import evaluate_speed
from app.services.resolve import Resolved
from bench.rows import Row, gpu_counter, measured_rows, predict, simulated_rows

FITTED = Path(__file__).resolve().parents[1] / "app" / "catalog" / "fitted.json"
SWEEPS, JOINT_TRIALS, SEED = 3, 150, 0
TIME_CONSTANTS = ("operand_reread", "adapter_reread", "elementwise_bytes_factor", "layer_launch_s", "zero3_hook_s", "unpack_hbm_bytes")
TIME_TABLES = {
    "matmul_frac": ("ampere", "hopper", "ada", "volta", "blackwell"),
    "attention_frac": ("ampere", "hopper", "ada", "blackwell"),
    "overlap_frac": ("fsdp2", "deepspeed"),
}
"""Constants that differ by architecture or framework, with the entries that public rows can tell."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measured run with its evaluated one-row table."""

    row: Row
    setup: TrainingSetup
    columns: Columns
    memory: Memory


def cases(*, three_d: bool = False) -> list[Case]:
    """Every public row with a memory or speed figure, evaluated once; what the domain refuses is left out."""
    found = []
    for row in measured_rows(three_d=three_d):
        with suppress(InvalidRequestError):
            found.append(Case(row, *_evaluated(row.resolved)))
    return found


def _evaluated(resolved: Resolved) -> tuple[TrainingSetup, Columns, Memory]:
    """The table of the one candidate that a pinned request leaves, the simplest where settings are free."""
    question = resolved.question
    setup = replace(question.setup, pool=question.pools[0])
    table = evaluate(setup, question.constraints)
    best = np.array([int(np.lexsort((table.memory.device, table.complexity))[0])])
    columns = table.columns.take(best)
    return setup, columns, evaluate_memory(setup, table.numbers, columns)


def by_family(errors: list[tuple[str, float]], near: float = 0.1) -> float:
    """Mean over families of the median absolute error, less a third of the share that is near; small families are left out."""
    groups = defaultdict(list)
    for family, error in errors:
        groups[family].append(abs(error))
    big = [g for g in groups.values() if len(g) >= 3] or list(groups.values())
    return statistics.fmean(statistics.median(g) - sum(e <= near for e in g) / len(g) / 3 for g in big)


BIAS_WEIGHT = 0.3
"""What a per cent of bias costs beside a per cent of median error: predictions that are all a little low mislead more."""


POOLED_WEIGHT = 2.0
"""Weight of the median over all rows beside the mean over families."""
NEAR_SPEED = 0.2
"""Error of a speed that counts as near: two runs of one configuration differ by 6 %, and engines of one kind by more."""
THREE_D_WEIGHT = 0.5
"""Weight of runs with tensor or pipeline parallelism: theirs are few engines, several without the kernels the others have."""


def bias(errors: list[tuple[str, float]]) -> float:
    """Mean over families of the median signed error."""
    groups = defaultdict(list)
    for family, error in errors:
        groups[family].append(error)
    return statistics.fmean(statistics.median(g) for g in groups.values() if len(g) >= 3)


@dataclass(frozen=True, slots=True)
class Reserved:
    """One measured reserved or device total and what the model makes it of, in bytes and logits."""

    family: str
    measured: float
    allocated: float
    base: float
    kind: int
    logits: float
    outside: float
    room: float


KINDS = ("reserved_frac_fsdp2", "reserved_frac_deepspeed", "reserved_frac_whole")
STEPS = {"reserved_frac_fsdp2": 0.02, "reserved_frac_deepspeed": 0.02, "reserved_frac_whole": 0.02, "reserved_logit_bytes": 0.5}


def _reserved(family: str, measured: float, counter: str, found: tuple[TrainingSetup, Columns, Memory]) -> Reserved:
    setup, c, memory = found
    fsdp2, deepspeed = (bool(column[0]) for column in gathering(c))
    allocated = float(memory.allocated[0])
    outside = float(memory.device[0] - memory.reserved[0])
    fused = setup.recipe.fused_loss or fsdp2
    return Reserved(
        family=family, measured=measured, allocated=allocated,
        base=float(pool_peaks(memory.gpu)[0]) if fsdp2 or deepspeed else allocated, kind=0 if fsdp2 else 1 if deepspeed else 2,
        logits=0.0 if fused else float(memory.share.tokens[0] / c.tp[0]) * setup.model.vocab_size,
        outside=outside if counter == "device_bytes" else 0.0,
        room=max(setup.rates.needed_frac * allocated, setup.pool.node.gpu.memory_bytes - allocated - outside),
    )  # fmt: skip


def reserved_totals(found: list[Case]) -> list[Reserved]:
    """Reserved and device totals of the measured runs, and those of replays of torch's allocator on simulated steps, as one more source."""
    measured = [
        _reserved(c.row.family, float(c.row.csv["peak_mem_gib"]) * 2**30, c.row.counter, (c.setup, c.columns, c.memory))
        for c in found
        if c.row.csv["peak_mem_gib"] and c.row.counter != "peak_allocated_bytes"
    ]
    replayed = [
        _reserved("replayed", float(row["reserved_sim"]), "peak_reserved_bytes", _evaluated(resolved)) for row, resolved in simulated_rows()
    ]
    return measured + replayed


def fit_reserved(found: list[Case]) -> dict[str, float]:
    """Shares of reserved memory above the pools' peaks and bytes per reserved logit, by exhaustive grid."""
    usable = reserved_totals(found)

    def loss(values: tuple[float, ...]) -> float:
        errors = []
        for run in usable:
            extra = run.base * (1 + values[run.kind]) + values[3] * run.logits - run.allocated
            predicted = run.allocated + min(extra, run.room) + run.outside
            errors.append((run.family, (predicted - run.measured) / run.measured))
        return by_family(errors) + BIAS_WEIGHT * abs(bias(errors))

    grid = product(*(np.arange(low, high + step / 2, step) for (low, high), step in ((_range(n), s) for n, s in STEPS.items())))
    best = min(grid, key=loss)
    return {name: round(float(value), 3) for name, value in zip(STEPS, best, strict=True)}


def _is_gathered(columns: Columns) -> bool:
    """Whether the one candidate moves tensors between ranks on streams of their own."""
    return any(bool(column[0]) for column in gathering(columns))


def fit_expandable() -> dict[str, float]:
    """Medians of what replays of the allocator with expandable segments reserve above the pools' peaks, and above live tensors."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for row, resolved in simulated_rows():
        _, c, memory = _evaluated(resolved)
        gathered = _is_gathered(c)
        base = pool_peaks(memory.gpu)[0] if gathered else memory.allocated[0]
        shares[gathered].append(float(row["reserved_sim_expandable"]) / float(base) - 1)
    return {
        "expandable_frac_gathered": round(statistics.median(shares[True]), 3),
        "expandable_frac_whole": round(statistics.median(shares[False]), 3),
    }


Change = tuple[Callable[[Rates], Rates], str]
"""How to change the rates, and the architecture or framework whose runs alone it can move; empty for all."""


def fit_time(found: list[Case], rates: Rates) -> Rates:
    """Coordinate descent over the constants of the time model, in factors that shrink with every sweep."""
    usable = [c for c in found if c.row.csv["tokens_per_s_per_gpu"] and c.row.speed_known and c.row.csv["fp8"] != "true"]
    numbers = [numbers_of(c.setup.model, c.setup.recipe) for c in usable]
    touched = [(c.setup.pool.node.gpu.architecture, next(f for f in FRAMEWORKS if getattr(c.columns, f)[0])) for c in usable]

    def error(index: int, candidate: Rates) -> float:
        case = usable[index]
        speed = evaluate_speed(replace(case.setup, rates=candidate), numbers[index], case.columns, case.memory.share)
        predicted = float(speed.tokens_per_step[0] / speed.step_s[0] / case.columns.world_size[0])
        return predicted / float(case.row.csv["tokens_per_s_per_gpu"]) - 1

    def loss(values: list[float]) -> float:
        apart: dict[bool, list[tuple[str, float]]] = {False: [], True: []}
        for case, value in zip(usable, values, strict=True):
            apart[case.row.three_d].append((case.row.family, value))
        pooled = statistics.median(abs(e) for _, e in apart[False])
        families = by_family(apart[False], NEAR_SPEED) + THREE_D_WEIGHT * by_family(apart[True], NEAR_SPEED)
        return families + BIAS_WEIGHT * abs(bias(apart[False])) + POOLED_WEIGHT * pooled

    best, errors = rates, [error(i, rates) for i in range(len(usable))]
    value = loss(errors)
    for sweep in range(SWEEPS):
        for change, only in _changes(1.0 + 0.3 / (sweep + 1)):
            candidate = change(best)
            trial = [error(i, candidate) if only in ("", *touched[i]) else old for i, old in enumerate(errors)]
            if loss(trial) < value - 1e-5:
                best, errors, value = candidate, trial, loss(trial)
        print(f"sweep {sweep + 1}: {value:.4f}")
    # Constants that trade against each other (a rate for a traffic) are moved together, in directions drawn at random.
    draw, spread = np.random.default_rng(SEED), 0.12
    for trial_number in range(JOINT_TRIALS):
        candidate = _jolted(best, draw, spread)
        trial = [error(i, candidate) for i in range(len(usable))]
        better = loss(trial) < value - 1e-5
        if better:
            best, errors, value = candidate, trial, loss(trial)
            print(f"joint {trial_number + 1}: {value:.4f}")
        spread = min(0.2, spread * 1.5) if better else max(0.015, spread * 0.97)
    return best


def _jolted(rates: Rates, draw: np.random.Generator, spread: float) -> Rates:
    """The rates with half of the fitted time constants moved by a random factor."""

    def moved(name: str, value: float) -> float:
        return _bounded(name, value * math.exp(draw.normal(0.0, spread))) if draw.random() < 0.5 else value

    tables = {n: getattr(rates, n) | {k: moved(n, getattr(rates, n)[k]) for k in keys} for n, keys in TIME_TABLES.items()}
    scalars: dict[str, Any] = {n: moved(n, getattr(rates, n)) for n in TIME_CONSTANTS}
    return replace(rates, **tables, **scalars)


def _changes(factor: float) -> list[Change]:
    def scaled(name: str, by: float) -> Change:
        def change(rates: Rates) -> Rates:
            moved: dict[str, Any] = {name: _bounded(name, getattr(rates, name) * by)}
            return replace(rates, **moved)

        return change, ""

    def entry(name: str, key: str, by: float) -> Change:
        return lambda rates: replace(rates, **{name: getattr(rates, name) | {key: _bounded(name, getattr(rates, name)[key] * by)}}), key

    steps = (factor, 1 / factor, factor**0.5, factor**-0.5)
    return [entry(n, k, s) for n, keys in TIME_TABLES.items() for k in keys for s in steps] + [
        scaled(n, s) for n in TIME_CONSTANTS for s in steps
    ]


@cache
def _range(name: str) -> tuple[float, float]:
    low, high = json.loads(FITTED.read_text())["constants"][name]["range"]
    return float(low), float(high)


def _bounded(name: str, value: float) -> float:
    low, high = _range(name)
    return float(min(high, max(low, value)))


def write(values: Mapping[str, Any]) -> None:
    """Put values into fitted.json, one constant a line."""
    current = json.loads(FITTED.read_text())
    for name, value in values.items():
        current["constants"][name]["value"] = value
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in current["constants"].items())
    head = f' "schema": {json.dumps(current["schema"])},\n "how": {json.dumps(current["how"])},\n "constants": {{\n  {lines}\n }}\n'
    FITTED.write_text("{\n" + head + "}\n")


def fit_intervals() -> dict[str, Any]:
    """Ends of the intervals that hold 90 % of the public rows: of peak memory by situation, and of step time."""
    memory, time = defaultdict[str, list[float]](list), list[float]()
    for case in cases():
        row, best = case.row, predict(case.row)
        if row.csv["peak_mem_gib"]:
            ratio = float(row.csv["peak_mem_gib"]) * 2**30 / gpu_counter(best, row.counter)
            memory[situation_of(case.setup, gathered=_is_gathered(case.columns))].append(ratio)
        if row.csv["tokens_per_s_per_gpu"] and row.speed_known and row.csv["fp8"] != "true":
            time.append(float(row.csv["tokens_per_s_per_gpu"]) / best.time.tokens_per_s_per_gpu - 1)
    ends = {kind: _shortest(ratios) for kind, ratios in sorted(memory.items())}
    return {"peak_ratio": ends, "time_interval_frac": round(float(np.quantile(np.abs(time), 0.9)), 3)}


def _shortest(ratios: list[float]) -> list[float]:
    """Ends of the shortest interval that holds 90 % of the rows: the tail that is left out may be on one side."""
    ordered = sorted(ratios)
    held = math.ceil(0.9 * len(ordered))
    low, high = min(zip(ordered, ordered[held - 1 :], strict=False), key=lambda ends: ends[1] - ends[0])
    return [round(low, 3), round(high, 3)]


def main() -> None:
    """Fit everything, write it, and say how wide the errors are that remain."""
    found = cases()
    write(fit_reserved(found) | fit_expandable())
    fitted = fit_time(found + cases(three_d=True), fitted_rates())
    rounded = {name: float(f"{getattr(fitted, name):.4g}") for name in TIME_CONSTANTS}
    write(rounded | {table: {k: round(v, 3) for k, v in getattr(fitted, table).items()} for table in TIME_TABLES})
    document.cache_clear()
    fitted_rates.cache_clear()
    write(fit_intervals())
    print(FITTED.read_text())


if __name__ == "__main__":
    main()
