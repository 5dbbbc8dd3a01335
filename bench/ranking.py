"""Does the planner pick the right setting? Groups of published runs that differ in nothing but settings (``make bench ARGS=ranking``).

A group is one source's runs of one model, trained the same way, on the same number of the same GPUs at one sequence length. In each,
the run predicted to be fastest must have reached at least 95 % of the fastest measured speed. Repeats of one setting are one run,
with the median of their speeds.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass

from app.domain.errors import InvalidRequestError
from bench.rows import Row, measured_rows, predict, scorer

WITHIN = 0.95
"""Share of the best measured speed that the predicted-fastest run must have reached."""
ALIKE = 0.001
"""Settings whose predicted speeds differ by less than this share are one pick: what tells them apart is not in the request."""
TARGET = 0.85
"""Share of groups in which it must."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a group: what was measured, what is predicted, tokens/s and GPU, and a row that has it."""

    measured: float
    predicted: float
    row: str


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that compete with each other."""

    name: tuple[str, ...]
    settings: tuple[Setting, ...]

    @property
    def reached(self) -> float:
        """Measured speed of the predicted-fastest setting, as a share of the best measured one; of several predicted alike, the median."""
        top = max(s.predicted for s in self.settings)
        picked = statistics.median(s.measured for s in self.settings if s.predicted > top * (1 - ALIKE))
        return picked / max(s.measured for s in self.settings)

    @property
    def spread(self) -> float:
        """Slowest over fastest measured speed: near 1 there is nothing to choose."""
        return min(s.measured for s in self.settings) / max(s.measured for s in self.settings)


def groups(*, three_d: bool) -> list[Group]:
    """All groups of at least two settings among the public rows with a usable speed; fp8 rows are left out."""
    request = scorer("rows").request
    found: dict[tuple[str, ...], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in measured_rows(three_d=three_d):
        data = row.csv
        if data["tokens_per_s_per_gpu"] and row.speed_known and data["fp8"] != "true":
            name = (row.family, data["model"], data["gpu_type"], data["n_gpus"], data["seq_len"], data["peft"] or "full")
            found[name][json.dumps(request(data), sort_keys=True)].append(row)
    made = (Group(name, tuple(s for rows in by.values() if (s := _setting(rows)))) for name, by in found.items())
    return [group for group in made if len(group.settings) > 1]


def _setting(rows: list[Row]) -> Setting | None:
    try:
        predicted = predict(rows[0]).time.tokens_per_s_per_gpu
    except InvalidRequestError:
        return None
    measured = statistics.median(float(row.csv["tokens_per_s_per_gpu"]) for row in rows)
    return Setting(measured, predicted, rows[0].csv["id"])


def table(found: list[Group]) -> list[str]:
    """Markdown rows: a line a source, then all groups."""
    lines = ["| source | groups | settings | picked right | speed of the pick, median | worst |", "|---|---:|---:|---:|---:|---:|"]
    for source in sorted({group.name[0] for group in found}):
        lines.append(_line(source, [g for g in found if g.name[0] == source]))
    return [*lines, _line("**all groups**", found)]


def _line(title: str, found: list[Group]) -> str:
    reached = [g.reached for g in found]
    right = sum(r >= WITHIN for r in reached) / len(reached)
    settings = sum(len(g.settings) for g in found)
    return f"| {title} | {len(found)} | {settings} | {right:.0%} | {statistics.median(reached):.1%} | {min(reached):.1%} |"


def summary() -> list[str]:
    """What docs/accuracy.md says about ranking."""
    parts = ["## Ranking", "",
             "Runs of one source that differ in settings only. The pick is right where the setting predicted to be fastest reached at "
             f"least {WITHIN:.0%} of the fastest measured speed.", ""]  # fmt: skip
    for three_d, title in ((False, "Data-parallel runs:"), (True, "Runs with tensor or pipeline parallelism:")):
        parts += [title, "", *table(groups(three_d=three_d)), ""]
    return parts


def main() -> None:
    """Print the tables, then every group where the pick is wrong."""
    print("\n".join(summary()))
    both = [g for three_d in (False, True) for g in groups(three_d=three_d)]
    choice = [g for g in both if g.spread < WITHIN]
    right = sum(g.reached >= WITHIN for g in both) / len(both)
    print(f"All {len(both)} groups: {right:.0%} right (target {TARGET:.0%}); of the {len(choice)} in which settings differ by more than "
          f"{1 - WITHIN:.0%}: {sum(g.reached >= WITHIN for g in choice) / len(choice):.0%}")  # fmt: skip
    for group in sorted(both, key=lambda g: g.reached):
        if group.reached < WITHIN:
            pick, best = max(group.settings, key=lambda s: s.predicted), max(group.settings, key=lambda s: s.measured)
            said, seen = (f"{s.row} ({s.predicted:.0f} predicted, {s.measured:.0f} measured)" for s in (pick, best))
            print(f"{group.reached:.0%} {' '.join(group.name)}: picked {said}, best {seen}")


if __name__ == "__main__":
    main()
