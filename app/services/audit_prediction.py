"""What an existing configuration costs as it will really run, beside what our plan would."""

from __future__ import annotations

from dataclasses import dataclass

from app.audit.subject import Subject
from app.domain.errors import InvalidRequestError
from app.domain.plan import Candidate, Plan
from app.domain.search.given import GivenSizes, given_candidate
from app.domain.search.planner import make_plan
from app.ingest.hub import Hub
from app.services.audit_request import AuditRequest
from app.services.audit_running import Running, running
from app.services.effort import EFFORT
from app.services.request import ConstraintsIn, PlanRequest, TrainingIn
from app.services.resolve import local_model, resolve

_NEEDED = ("model", "training", "cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Figures of the file and of our plan.

    Attributes:
        candidate: the file as it will run; None where that cannot be told.
        why_not: why there is none.
        assumed: what the file leaves open, in words.
        plan: ours for the same job; None where there is nothing to compare.
        gain: bytes of one GPU and seconds a step that ours takes less.
    """

    candidate: Candidate | None = None
    why_not: str = ""
    assumed: tuple[str, ...] = ()
    plan: Plan | None = None
    gain: dict[str, float] | None = None


def predict(request: AuditRequest, subject: Subject, hub: Hub | None = None) -> Prediction:
    """Memory and time of the file, ignored keys ignored and defaults filled in, and what our plan gains over it.

    Raises:
        UnavailableError: the hub does not answer, or too many large searches are running.
    """
    if missing := [part for part in _NEEDED if getattr(request, part) is None]:
        return Prediction(why_not=f"Memory and time are predicted with {' and '.join(missing)} as well.")
    found = running(subject)
    if found.why_not:
        return Prediction(why_not=found.why_not)
    try:
        if request.model is not None:
            request = request.model_copy(update={"model": local_model(request.model, hub)})
        with EFFORT.budget() as budget:
            resolved = resolve(_pinned(request, found))
            candidate = given_candidate(resolved.question, _sizes(found))
            ours = make_plan(resolve(_open(request, candidate)).question, budget, brief=True)
    except InvalidRequestError as refused:
        return Prediction(why_not=f"Memory and time are not predicted: {refused.detail}.", assumed=found.assumed)
    return Prediction(
        candidate=candidate, assumed=found.assumed + tuple(resolved.assumed), plan=ours, gain=_gain(candidate, ours.recommended)
    )  # fmt: skip


def _pinned(request: AuditRequest, found: Running) -> PlanRequest:
    """The request with everything the file says pinned."""
    given = request.training.model_dump() if request.training else {}
    training = given | {name: value for name, value in found.training.items() if value is not None}
    constraints = request.constraints.model_dump() | found.constraints
    return _whole(request, TrainingIn.model_validate(training), ConstraintsIn.model_validate(constraints))


def _open(request: AuditRequest, candidate: Candidate) -> PlanRequest:
    """The same job with every choice open: as many sequences a step, on the same GPUs."""
    batch = {"micro_batch": None, "grad_accum": None, "global_batch": candidate.settings.global_batch}
    given = request.training.model_dump() if request.training else {}
    training = TrainingIn.model_validate(
        given | batch | {"optimizer": candidate.settings.optimizer, "precision": candidate.settings.precision}
    )
    return _whole(request, training, ConstraintsIn())


def _whole(request: AuditRequest, training: TrainingIn, constraints: ConstraintsIn) -> PlanRequest:
    return PlanRequest(
        model=request.model, training=training, cluster=request.cluster, constraints=constraints,
        headroom_frac=request.headroom_frac,
    )  # fmt: skip


def _sizes(found: Running) -> GivenSizes | None:
    return GivenSizes(**found.sizes) if found.sizes is not None else None


def _gain(theirs: Candidate, ours: Candidate) -> dict[str, float]:
    return {
        "memory_bytes": theirs.gpu.device_bytes - ours.gpu.device_bytes,
        "step_s": theirs.time.step_s - ours.time.step_s,
        "speedup": theirs.time.step_s / ours.time.step_s,
    }
