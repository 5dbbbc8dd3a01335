"""Fit the constants that no specification gives, on the public measurements only: ``make fit``.

Every source family weighs the same, however many rows it has. What is fitted, and within which range, stands in
app/catalog/fitted.json; the result is written back there.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from app.catalog.data import document
from app.catalog.fitted import fitted_rates
from app.domain.memory.peak import Memory, evaluate_memory, pool_peaks
from app.domain.search.evaluate import evaluate
from app.domain.setup import Columns, Rates, TrainingSetup, numbers_of
from app.domain.speed.step import evaluate_speed
from bench.rows import Row, gpu_counter, measured_rows, predict

FITTED = Path(__file__).resolve().parents[1] / "app" / "catalog" / "fitted.json"
SWEEPS = 3
TIME_CONSTANTS = ("half_rows", "half_width", "attention_frac", "elementwise_bytes_factor", "overlap_frac", "layer_launch_s")
BEST_MATMUL_FRAC = 0.8
"""No training run reaches more of the dense peak than the best single product measured on Hopper and Blackwell."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measured run with its evaluated one-row table."""

    row: Row
    setup: TrainingSetup
    columns: Columns
    memory: Memory


def cases() -> list[Case]:
    """Every public row with a memory or speed figure, evaluated once."""
    found = []
    for row in measured_rows():
        question = row.resolved.question
        setup = replace(question.setup, pool=question.pools[0])
        table = evaluate(setup, question.constraints)
        best = np.array([int(np.lexsort((table.memory.device, table.complexity))[0])])
        columns = table.columns.take(best)
        memory = evaluate_memory(setup, table.numbers, columns)
        found.append(Case(row, setup, columns, memory))
    return found


def by_family(errors: list[tuple[str, float]]) -> float:
    """Mean over families of the median absolute error, less a third of the share within 10 %; small families are left out."""
    groups = defaultdict(list)
    for family, error in errors:
        groups[family].append(abs(error))
    big = [g for g in groups.values() if len(g) >= 3] or list(groups.values())
    return statistics.fmean(statistics.median(g) - sum(e <= 0.1 for e in g) / len(g) / 3 for g in big)


def fit_reserved(found: list[Case]) -> dict[str, float]:
    """Shares of reserved memory above the pools' peaks and bytes per reserved logit, by exhaustive grid."""
    usable = []
    for case in found:
        measured, counter = case.row.csv["peak_mem_gib"], case.row.counter
        if measured and counter != "peak_allocated_bytes":
            c, recipe, model = case.columns, case.setup.recipe, case.setup.model
            gathered = bool((c.param_ranks[0] > 1) | ((c.deepspeed[0] > 0) & (c.zero_ranks[0] > 1)))
            base = float(pool_peaks(case.memory.gpu)[0] if gathered else case.memory.allocated[0])
            logits = 0.0 if recipe.fused_loss else float(case.memory.share.tokens[0]) * model.vocab_size
            fixed = float(case.memory.device[0] - case.memory.reserved[0]) if counter == "device_bytes" else 0.0
            usable.append((case.row.family, float(measured) * 2**30, base, gathered, logits, fixed))

    def loss(sharded: float, whole: float, each: float) -> float:
        return by_family([(f, (a * (1 + (sharded if g else whole)) + each * t + x - m) / m) for f, m, a, g, t, x in usable])

    steps = {"reserved_frac_sharded": 0.01, "reserved_frac_whole": 0.01, "reserved_logit_bytes": 0.5}
    grid = product(*(np.arange(low, high + step / 2, step) for (low, high), step in ((_range(n), s) for n, s in steps.items())))
    sharded, whole, each = min(grid, key=lambda p: loss(*p))
    return {
        "reserved_frac_sharded": round(float(sharded), 3),
        "reserved_frac_whole": round(float(whole), 3),
        "reserved_logit_bytes": float(each),
    }


def fit_time(found: list[Case], rates: Rates) -> Rates:
    """Coordinate descent over the constants of the time model, in factors that shrink with every sweep."""
    usable = [c for c in found if c.row.csv["tokens_per_s_per_gpu"] and c.row.speed_known and c.row.csv["fp8"] != "true"]
    numbers = [numbers_of(c.setup.model, c.setup.recipe) for c in usable]

    def loss(candidate: Rates) -> float:
        errors = []
        for case, count in zip(usable, numbers, strict=True):
            speed = evaluate_speed(replace(case.setup, rates=candidate), count, case.columns, case.memory.share)
            predicted = float(speed.tokens_per_step[0] / speed.step_s[0] / case.columns.world_size[0])
            measured = float(case.row.csv["tokens_per_s_per_gpu"])
            errors.append((case.row.family, (predicted - measured) / measured))
        return by_family(errors)

    best, value = rates, loss(rates)
    for sweep in range(SWEEPS):
        for change in _changes(1.0 + 0.3 / (sweep + 1)):
            candidate = change(best)
            if (trial := loss(candidate)) < value - 1e-5:
                best, value = candidate, trial
        print(f"sweep {sweep + 1}: {value:.4f}")
    return best


def _changes(factor: float) -> list[Callable[[Rates], Rates]]:
    def scaled(name: str, by: float) -> Callable[[Rates], Rates]:
        return lambda rates: replace(rates, **{name: _bounded(name, getattr(rates, name) * by)})  # type: ignore[arg-type]

    def architecture(name: str, by: float) -> Callable[[Rates], Rates]:
        return lambda rates: replace(
            rates, matmul_frac=dict(rates.matmul_frac) | {name: min(BEST_MATMUL_FRAC, rates.matmul_frac[name] * by)}
        )

    steps = (factor, 1 / factor, factor**0.5, factor**-0.5)
    return [architecture(a, s) for a in ("ampere", "hopper", "ada", "volta", "blackwell") for s in steps] + [
        scaled(n, s) for n in TIME_CONSTANTS for s in steps
    ]


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
    """Half widths that hold 90 % of the public rows, of peak memory by what is trained, and of step time."""
    memory, time = defaultdict[str, list[float]](list), list[float]()
    for row in measured_rows():
        best = predict(row)
        if row.csv["peak_mem_gib"]:
            adapter = row.resolved.question.setup.recipe.adapter
            error = float(row.csv["peak_mem_gib"]) * 2**30 / gpu_counter(best, row.counter) - 1
            memory[adapter.kind if adapter else "full"].append(error)
        if row.csv["tokens_per_s_per_gpu"] and row.speed_known and row.csv["fp8"] != "true":
            time.append(float(row.csv["tokens_per_s_per_gpu"]) / best.time.tokens_per_s_per_gpu - 1)
    return {"interval_frac": {kind: _width(errors) for kind, errors in memory.items()}, "time_interval_frac": _width(time)}


def _width(errors: list[float]) -> float:
    return round(float(np.quantile(np.abs(errors), 0.9)), 3)


def main() -> None:
    """Fit everything, write it, and say how wide the errors are that remain."""
    found = cases()
    write(fit_reserved(found))
    fitted = fit_time(found, fitted_rates())
    rounded = {name: float(f"{getattr(fitted, name):.4g}") for name in TIME_CONSTANTS}
    write(rounded | {"matmul_frac": {k: round(v, 3) for k, v in fitted.matmul_frac.items()}})
    document.cache_clear()
    fitted_rates.cache_clear()
    write(fit_intervals())
    print(FITTED.read_text())


if __name__ == "__main__":
    main()
