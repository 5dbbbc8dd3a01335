"""What is said about the other models on the same GPUs: what each holds, and what a step counts of them."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.model.parameters import total_params
from app.domain.plan import Candidate, CompanionSummary, PlanWarning
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.base import warning
from app.domain.units import format_count, format_gib


def companions_of(evaluation: Evaluation, candidate: Candidate) -> tuple[CompanionSummary, ...]:
    """Each companion with what it holds on a GPU at the end of the trained model's step, when it is at rest itself."""
    at_rest = next(moment for moment in candidate.gpu.moments if moment.name == "optimizer step")
    return tuple(
        CompanionSummary(
            role=companion.role,
            name=companion.model.name,
            total_params=total_params(companion.model),
            trains=companion.trains,
            held_bytes=sum(int(term.value) for term in at_rest.terms if term.name.startswith(f"{companion.role}: ")),
        )
        for companion in evaluation.setup.companions
    )


def companion_warnings(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """What is counted, and frozen models that are whole on each GPU although nobody asked for it."""
    companions = evaluation.setup.companions
    if not companions:
        return
    found = companions_of(evaluation, candidate)
    held = "; ".join(
        f"{c.role} ({format_count(c.total_params)} parameters, {'trained' if c.trains else 'frozen'}) holds {format_gib(c.held_bytes)}"
        for c in found
    )
    engines = [companion.role for companion in companions if companion.cache_tokens]
    generated = f", which is all the work of {' and '.join(engines)}," if engines else ""
    yield warning(
        "companions_counted",
        f"On each GPU between its own forwards: {held}. A step counts one forward of each frozen model and one training step of each "
        f"trained one, one after another. Generation{generated} and moving weights to an engine are not counted.",
        "companions",
        "Add the time of generation from a run of your own; it depends on how long the answers are.",
        "info",
    )
    settings, replicas = candidate.settings, [c for c in companions if not (c.trains or c.replicated or c.on_host)]
    if not replicas or settings.world_size == 1 or settings.strategy not in ("ddp", "zero1", "zero2"):
        return
    what = " and ".join(c.role for c in replicas)
    yield warning(
        "companion_whole",
        f"{settings.strategy.replace('zero', 'ZeRO-').replace('ddp', 'DDP')} divides no frozen weights: {what} "
        f"{'are' if len(replicas) > 1 else 'is'} whole on each GPU.",
        "companions.0.sharding",
        "ZeRO-3 and FSDP2 divide them as well; offload_parameters cpu keeps them in host memory between forwards.",
        "info",
    )
