"""What is said about DeepSpeed's sizes: the plan counts those of its own ds_config.json, and the defaults are larger."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.memory.companions import label_of, moments_of
from app.domain.plan import Candidate, PlanWarning
from app.domain.search.evaluate import Evaluation, host_capacity_bytes
from app.domain.search.sizes import USUAL_SIZES
from app.domain.search.warn.base import warning
from app.domain.units import format_gib


def size_warnings(evaluation: Evaluation, candidate: Candidate, index: int) -> Iterator[PlanWarning]:
    """A plan that fits with the sizes it writes and would not with DeepSpeed's own."""
    settings, setup = candidate.settings, evaluation.setup
    if candidate.verdict == "does_not_fit" or settings.framework != "deepspeed" or settings.strategy == "ddp":
        return
    memory, row = evaluation.memory, evaluation.sized.usual(index)
    if row is None:
        return
    needed, host, room = float(memory.needed[row]), float(memory.host_bytes[row]), host_capacity_bytes(setup)
    short = []
    if needed > setup.capacity_bytes:
        moment = label_of(setup, moments_of(setup)[int(memory.moment[row])])
        short.append(f"{format_gib(needed)} of the {format_gib(setup.capacity_bytes)} usable on each GPU ({moment})")
    if room is not None and host > room:
        short.append(f"{format_gib(host)} of the {format_gib(room)} usable on each host")
    if short:
        stage3 = f"sub_group_size {settings.sub_group_numel:,} and " if settings.strategy == "zero3" else ""
        defaults = f"{USUAL_SIZES['sub_group']:,} and " if stage3 else ""
        yield warning(
            "default_sizes",
            f"The plan fits with the {stage3}reduce_bucket_size {settings.reduce_bucket_numel:,} of its ds_config.json. With DeepSpeed's "
            f"defaults, {defaults}{USUAL_SIZES['bucket']:,}, it would need {' and '.join(short)}.",
            "constraints.strategy",
            "Keep the sizes of ds_config.json if you start from a file of your own.",
        )
