"""Predicted against measured, by source: writes docs/accuracy.md (``make bench ARGS=accuracy``)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from app import ENGINE_VERSION
from app.domain.errors import InvalidRequestError
from app.domain.search.planner import make_plan
from bench.ranking import summary
from bench.rows import gpu_counter, measured_rows, simulated_rows
from bench.suspects import suspected

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
WORST = 25


@dataclass(slots=True)
class Tally:
    """Relative errors by family, and what is needed to list the worst rows."""

    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: list[tuple[float, dict[str, str], str]] = field(default_factory=list)

    def add(self, family: str, error: float, row: dict[str, str], peak: str = "") -> None:
        """Count one row."""
        self.errors[family].append(error)
        self.rows.append((error, row, peak))

    def worst(self) -> list[str]:
        """Markdown rows: the largest errors, with what is suspected behind each."""
        lines = ["| error | run | predicted peak at | suspected cause |", "|---:|---|---|---|"]
        largest = sorted(self.rows, key=lambda r: -abs(r[0]))[:WORST]
        return [*lines, *(f"| {error:+.0%} | {row['id']} | {peak} | {suspected(row)} |" for error, row, peak in largest)]

    def table(self) -> list[str]:
        """Markdown rows: a line a family, then all families with equal weight."""
        lines = ["| source | rows | median error | within 10 % | within 20 % | bias |", "|---|---:|---:|---:|---:|---:|"]
        stats = {name: _stats(errors) for name, errors in sorted(self.errors.items())}
        lines += [f"| {name} | {len(self.errors[name])} | {_cells(s)} |" for name, s in stats.items()]
        big = [s for name, s in stats.items() if len(self.errors[name]) >= 3] or list(stats.values())
        mean = tuple(statistics.fmean(s[k] for s in big) for k in range(4))
        total = sum(map(len, self.errors.values()))
        pooled = statistics.median(abs(e) for es in self.errors.values() for e in es)
        return [*lines, f"| **all families** | {total} | {_cells(mean)} |", "", f"Median over all rows: {pooled:.1%}."]


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
            memory.add(row.family, (gpu_counter(best, row.counter) - measured) / measured, data, best.gpu.peak_moment)
            low, high = best.gpu.interval_90_bytes
            inside.append(low <= measured <= high)
        if data["tokens_per_s_per_gpu"] and row.speed_known and data["fp8"] != "true":
            measured = float(data["tokens_per_s_per_gpu"])
            speed.add(row.family, (best.time.tokens_per_s_per_gpu - measured) / measured, data)
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
    """Write the page."""
    parts = [
        "# Accuracy",
        "",
        f"Engine {ENGINE_VERSION}. Written by `make bench ARGS=accuracy`, which runs the planner on published measurements; do not edit.",
        "Errors are relative to the published figure. Every source weighs the same in the bold line, however many rows it has.",
        "",
    ]
    for three_d, title in ((False, "Data-parallel runs"), (True, "Runs with tensor or pipeline parallelism")):
        memory, speed, sentence = compare(three_d=three_d)
        for name, tally in (("peak GPU memory", memory), ("tokens/s per GPU (fp8 left out)", speed)):
            if tally.rows:
                parts += [f"## {title}: {name}", "", *tally.table(), ""]
        parts += [f"Verdicts — {sentence}", ""]
        if not three_d:
            parts += ["Worst memory rows:", "", *memory.worst(), ""]
    parts += summary()
    parts += ["## Simulated peaks of allocated memory", "", simulated(), ""]
    PAGE.write_text("\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
