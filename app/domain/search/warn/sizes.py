"""What is said about DeepSpeed's sizes: the plan counts those of its own ds_config.json, and the defaults are larger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from app.domain.memory.moments import MOMENT_LABELS, MOMENTS
from app.domain.memory.peak import evaluate_memory, evaluate_totals
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.evaluate import Evaluation, host_capacity_bytes
from app.domain.search.warn.base import warning
from app.domain.units import format_gib

DEFAULTS = {"bucket": 500_000_000, "sub_group": 1_000_000_000, "prefetch": 50_000_000, "reuse": 1_000_000_000, "persistence": 100_000}
"""Elements. Source: DeepSpeed 0.19.8 runtime/zero/config.py; transformers' "auto" changes the bucket and the prefetch only."""


def size_warnings(evaluation: Evaluation, candidate: Candidate, index: int) -> Iterator[PlanWarning]:
    """A plan that fits with the sizes it writes and would not with DeepSpeed's own."""
    settings, setup = candidate.settings, evaluation.setup
    if candidate.verdict == "does_not_fit" or settings.framework != "deepspeed" or settings.strategy == "ddp":
        return
    row = evaluation.columns.take(np.array([index]))
    sizes = {name: np.array([size]) for name, size in DEFAULTS.items()}
    as_usual = replace(row, overlap_comm=row.zero3 * 1, **sizes)
    totals, room = evaluate_totals(setup, evaluation.numbers, as_usual), host_capacity_bytes(setup)
    needed, host = float(totals.needed[0]), float(totals.host_bytes[0])
    short = []
    if needed > setup.capacity_bytes:
        memory = evaluate_memory(setup, evaluation.numbers, as_usual)
        moment = MOMENT_LABELS[MOMENTS[int(memory.moment[0])]]
        short.append(f"{format_gib(needed)} of the {format_gib(setup.capacity_bytes)} usable on each GPU ({moment})")
    if room is not None and host > room:
        short.append(f"{format_gib(host)} of the {format_gib(room)} usable on each host")
    if short:
        stage3 = f"sub_group_size {settings.sub_group_numel:,} and " if settings.strategy == "zero3" else ""
        defaults = f"{DEFAULTS['sub_group']:,} and " if stage3 else ""
        yield warning(
            "default_sizes",
            f"The plan fits with the {stage3}reduce_bucket_size {settings.reduce_bucket_numel:,} of its ds_config.json. With DeepSpeed's "
            f"defaults, {defaults}{DEFAULTS['bucket']:,}, it would need {' and '.join(short)}.",
            "constraints.strategy",
            "Keep the sizes of ds_config.json if you start from a file of your own.",
        )
