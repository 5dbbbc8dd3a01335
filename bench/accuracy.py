"""Predicted against measured, by source: writes docs/accuracy.md and app/catalog/accuracy.json (``make bench ARGS=accuracy``)."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app import ENGINE_VERSION
from app.domain.errors import InvalidRequestError
from app.domain.search.planner import make_plan
from bench.cited import link_of
from bench.ranking import summary
from bench.rows import gpu_counter, measured_rows, simulated_rows
from bench.suspects import suspected

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs" / "accuracy.md", ROOT / "app" / "catalog" / "accuracy.json"
WORST = 25
FIGURES = ("median_error_frac", "within_10_frac", "within_20_frac", "bias_frac")


@dataclass(frozen=True, slots=True)
class Compared:
    """One published run beside its prediction, in bytes or tokens/s per GPU."""

    family: str
    row: dict[str, str]
    predicted: float
    measured: float
    peak: str = ""

    @property
    def error(self) -> float:
        """Relative to the published figure."""
        return (self.predicted - self.measured) / self.measured


@dataclass(slots=True)
class Tally:
    """Relative errors by family, and what is needed to list the worst rows."""

    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: list[Compared] = field(default_factory=list)

    def add(self, found: Compared) -> None:
        """Count one row."""
        self.errors[found.family].append(found.error)
        self.rows.append(found)

    def worst(self) -> list[str]:
        """Markdown rows: the largest errors, with what is suspected behind each."""
        lines = ["| error | run | predicted peak at | suspected cause |", "|---:|---|---|---|"]
        largest = sorted(self.rows, key=lambda r: -abs(r.error))[:WORST]
        return [*lines, *(f"| {r.error:+.0%} | {r.row['id']} | {r.peak} | {suspected(r.row)} |" for r in largest)]

    def stats(self) -> dict[str, tuple[float, ...]]:
        """The four figures of each family; under an empty name those of all, each family weighing the same."""
        stats = {name: _stats(errors) for name, errors in sorted(self.errors.items())}
        big = [s for name, s in stats.items() if len(self.errors[name]) >= 3] or list(stats.values())
        return stats | {"": tuple(statistics.fmean(s[k] for s in big) for k in range(4))}

    def pooled(self) -> float:
        """Median error over all rows."""
        return statistics.median(abs(e) for es in self.errors.values() for e in es)

    def table(self) -> list[str]:
        """Markdown rows: a line a family, then all families with equal weight."""
        lines = ["| source | rows | median error | within 10 % | within 20 % | bias |", "|---|---:|---:|---:|---:|---:|"]
        *families, (_, mean) = self.stats().items()
        lines += [f"| {name} | {len(self.errors[name])} | {_cells(s)} |" for name, s in families]
        return [*lines, f"| **all families** | {len(self.rows)} | {_cells(mean)} |", "", f"Median over all rows: {self.pooled():.1%}."]

    def document(self, title: str, unit: str, sentence: str) -> dict[str, Any]:
        """The same as data, with every row."""
        *families, (_, mean) = self.stats().items()
        return {
            "title": title,
            "unit": unit,
            "verdicts": sentence,
            "pooled_median_error_frac": round(self.pooled(), 4),
            "all": {"rows": len(self.rows)} | _named(mean),
            "families": [{"family": name, "rows": len(self.errors[name])} | _named(s) for name, s in families],
            "columns": ["run", "family", "predicted", "measured", "predicted_peak_at", "cited"],
            "rows": [
                [r.row["id"], r.family, float(f"{r.predicted:.6g}"), float(f"{r.measured:.6g}"), r.peak, r.row["source"]] for r in self.rows
            ],
        }


def _named(stats: tuple[float, ...]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in zip(FIGURES, stats, strict=True)}


def _stats(errors: list[float]) -> tuple[float, float, float, float]:
    sizes = [abs(e) for e in errors]
    count = len(sizes)
    return statistics.median(sizes), sum(e <= 0.1 for e in sizes) / count, sum(e <= 0.2 for e in sizes) / count, statistics.median(errors)


def _cells(stats: tuple[float, ...]) -> str:
    median, ten, twenty, bias = stats
    return f"{median:.1%} | {ten:.0%} | {twenty:.0%} | {bias:+.1%}"


def compare(*, three_d: bool) -> tuple[Tally, Tally, str]:
    """Memory and speed tallies of the public rows, and the sentence on fits and interval."""
    memory, speed, verdicts = Tally(), Tally(), defaultdict[tuple[bool, str], list[bool]](list)
    inside, refused = [], 0
    for row in measured_rows(three_d=three_d):
        try:
            plan = make_plan(row.resolved.question)
        except InvalidRequestError:
            refused += 1
            continue
        best, data = plan.recommended, row.csv
        if data["peak_mem_gib"]:
            measured = float(data["peak_mem_gib"]) * 2**30
            memory.add(Compared(row.family, data, gpu_counter(best, row.counter), measured, best.gpu.peak_moment))
            low, high = best.gpu.interval_90_bytes
            inside.append(low <= measured <= high)
        if data["tokens_per_s_per_gpu"] and row.speed_known and data["fp8"] != "true":
            measured = float(data["tokens_per_s_per_gpu"])
            speed.add(Compared(row.family, data, best.time.tokens_per_s_per_gpu, measured))
        if data["oom"] in ("true", "false"):
            ran = data["oom"] == "false"
            verdicts[ran, row.family].append((plan.verdict != "does_not_fit") is ran)
    recall = {ran: [sum(v) / len(v) for (was, _), v in verdicts.items() if was is ran] for ran in (True, False)}
    words = [
        f"{name} {statistics.fmean(values):.1%}"
        for name, values in (("said to fit, of those that ran:", recall[True]), ("said not to, of those that ran out:", recall[False]))
        if values
    ]
    balanced = statistics.fmean(statistics.fmean(values) for values in recall.values() if values)
    sentence = f"{'; '.join(words)}; balanced {balanced:.1%}."
    if inside:
        sentence += f" {sum(inside) / len(inside):.0%} of measured peaks lie inside the 90 % interval."
    return memory, speed, f"{sentence} {refused} rows were refused as contradictory."


def simulated() -> str:
    """One sentence on the simulated peaks of allocated memory."""
    errors = []
    for row, resolved in simulated_rows():
        want = int(float(row["peak_total"]))
        errors.append(abs(make_plan(resolved.question).recommended.gpu.peak_allocated_bytes - want) / want)
    errors.sort()
    return (
        f"{len(errors)} peaks simulated operation by operation: median error {statistics.median(errors):.2%}, "
        f"90 % of them within {errors[int(0.9 * (len(errors) - 1))]:.1%}, worst {errors[-1]:.1%}; "
        f"{sum(e <= 0.02 for e in errors) / len(errors):.0%} within 2 %."
    )


def main() -> None:
    """Write the page and the data."""
    parts = [
        "# Accuracy",
        "",
        f"Engine {ENGINE_VERSION}. Written by `make bench ARGS=accuracy`, which runs the planner on published measurements; do not edit.",
        "Errors are relative to the published figure. Every source weighs the same in the bold line, however many rows it has.",
        "",
    ]
    sections = []
    for three_d, title in ((False, "Data-parallel runs"), (True, "Runs with tensor or pipeline parallelism")):
        memory, speed, sentence = compare(three_d=three_d)
        for name, unit, tally in (("peak GPU memory", "bytes", memory), ("tokens/s per GPU (fp8 left out)", "tokens/s", speed)):
            if tally.rows:
                parts += [f"## {title}: {name}", "", *tally.table(), ""]
                sections.append(tally.document(f"{title}: {name}", unit, sentence))
        parts += [f"Verdicts — {sentence}", ""]
        if not three_d:
            parts += ["Worst memory rows:", "", *memory.worst(), ""]
    parts += summary()
    on_simulated = simulated()
    parts += ["## Simulated peaks of allocated memory", "", on_simulated, ""]
    PAGE.write_text("\n".join(parts))
    DATA.write_text(_data(sections, on_simulated))
    print("\n".join(parts))


def _data(sections: list[dict[str, Any]], on_simulated: str) -> str:
    """The data file: a row a line, so that a change shows in a diff."""
    cited = sorted({row[-1] for section in sections for row in section["rows"]})
    head: dict[str, Any] = {"schema": "accuracy/1", "engine_version": ENGINE_VERSION, "simulated": on_simulated}
    head |= {"cited": [{"text": text, "url": link_of(text)} for text in cited]}
    places = {text: place for place, text in enumerate(cited)}
    written = []
    for section in sections:
        rows = [[*row[:-1], places[row[-1]]] for row in section.pop("rows")]
        lines = ",\n".join("   " + json.dumps(row, ensure_ascii=False) for row in rows)
        written.append(json.dumps(section, ensure_ascii=False)[:-1] + f', "rows": [\n{lines}\n  ]}}')
    joined = ",\n  ".join(written)
    return json.dumps(head, ensure_ascii=False, indent=1)[:-2] + f',\n "sections": [\n  {joined}\n ]\n}}\n'


if __name__ == "__main__":
    main()
