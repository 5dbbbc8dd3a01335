"""Use case: answer one planning request, with its files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app import ENGINE_VERSION
from app.domain.errors import ConflictError, InvalidRequestError
from app.domain.plan import Artifact, Plan, PlanWarning
from app.domain.search.explain import describe
from app.domain.search.planner import make_plan
from app.domain.units import format_count, format_gib, format_number
from app.emit import FILE_KINDS, files_for
from app.emit.deepspeed import deepspeed_config
from app.emit.job import EmitJob
from app.ingest.hub import Hub
from app.services.document import plan_document
from app.services.releases import release_warnings
from app.services.request import PlanRequest
from app.services.resolve import Resolved, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan with the request it answers, as understood."""

    request: PlanRequest
    plan: Plan
    job: EmitJob | None
    gpu_name: str

    def document(self) -> dict[str, Any]:
        """The JSON of the contract."""
        return plan_document(self.plan, self.request)


def answer(request: PlanRequest, hub: Hub | None = None) -> Answer:
    """Plan, and write the files of the recommended settings.

    Raises:
        InvalidRequestError: the request makes no sense.
        UnavailableError: the hub that a model is to be fetched from does not answer.
    """
    resolved = resolve(request, hub)
    return answer_of(request, resolved, make_plan(resolved.question))


def answer_of(request: PlanRequest, resolved: Resolved, plan: Plan) -> Answer:
    """The answer a plan makes: with what was assumed, and the files of the recommended settings."""
    assumed = tuple(
        PlanWarning(code="assumed", severity="info", message=a, field="cluster.pools", fix="Give the figure to replace it.")
        for a in resolved.assumed
    )
    plan = replace(plan, warnings=assumed + plan.warnings)
    if plan.verdict == "does_not_fit":
        return Answer(request=request, plan=plan, job=None, gpu_name=resolved.gpu_name)
    job = _job(request, resolved, plan)
    files, unwritten = _files(job)
    said = (*unwritten, *_revision(request), *release_warnings(job))
    plan = replace(plan, files=files, warnings=plan.warnings + said)
    return Answer(request=request, plan=plan, job=job if files else None, gpu_name=resolved.gpu_name)


def file_of(request: PlanRequest, filename: str, *, dialect: str = "plain", hub: Hub | None = None) -> Artifact:
    """One file of the recommended plan.

    Raises:
        ConflictError: nothing fits, or the file does not belong to the recommended framework.
    """
    given = answer(request, hub)
    if given.plan.verdict == "does_not_fit":
        ways = "; ".join(w.label for w in given.plan.ways_out if w.fits)
        raise ConflictError(f"{given.plan.summary}" + (f" What would fit: {ways}." if ways else ""))
    framework = given.plan.recommended.settings.framework
    if filename == "ds_config.json" and given.job and framework == "deepspeed" and dialect == "hf_auto":
        return deepspeed_config(given.job, dialect="hf_auto")
    for artifact in given.plan.files:
        if artifact.filename == filename:
            return artifact
    belongs = ", ".join(FILE_KINDS[filename])
    raise ConflictError(
        f"{filename} belongs to {belongs}, but the recommended plan runs on {framework}. "
        f"Pin constraints.framework to {FILE_KINDS[filename][0]} to get it."
    )


def _job(request: PlanRequest, resolved: Resolved, plan: Plan) -> EmitJob:
    best = plan.recommended
    figures = {
        "model": f"{plan.model.name}, {format_count(plan.model.total_params)} parameters",
        "GPUs": f"{best.settings.nodes} × {best.settings.gpus_per_node} {resolved.gpu_name}",
        "plan": describe(best.settings),
        "peak per GPU": f"{format_gib(best.gpu.device_bytes)} of {format_gib(best.gpu.capacity_bytes)} at {best.gpu.peak_moment}",
        "speed": f"{format_number(best.time.tokens_per_s_per_gpu)} tokens/s per GPU",
    }
    used = resolved.question.setup.recipe.adapter
    adapter = request.training.adapter.model_dump() | {"dropout": used.dropout} if request.training.adapter and used else None
    return EmitJob(
        settings=best.settings,
        model=resolved.model.architecture,
        hf_id=resolved.model.hf_id,
        hf_config=resolved.model.hf_config,
        adapter=adapter,
        engine_version=ENGINE_VERSION,
        figures=figures,
        versions=resolved.question.constraints.versions,
        planned_allocated_bytes=best.gpu.peak_allocated_bytes,
        planned_reserved_bytes=best.gpu.peak_reserved_bytes,
    )


def _revision(request: PlanRequest) -> tuple[PlanWarning, ...]:
    """The figures are of the named revision; the training script would load another."""
    if request.model.revision is None:
        return ()
    message = f"The plan is for revision {request.model.revision}, but the training script loads the repository's default branch."
    said = PlanWarning(
        code="revision_not_in_script", severity="warning", field="model.revision", message=message,
        fix="Download that revision and give its folder to the script as --model.",
    )  # fmt: skip
    return (said,)


def _files(job: EmitJob) -> tuple[tuple[Artifact, ...], tuple[PlanWarning, ...]]:
    """The plan's files; what cannot be written is said rather than written wrongly."""
    try:
        files = files_for(job)
    except InvalidRequestError as error:
        said = PlanWarning(
            code="no_files", severity="warning", field="constraints", message=error.detail, fix="Leave it open to get files."
        )
        return (), (said,)
    if any(artifact.filename.endswith("_train.py") for artifact in files):
        return files, ()
    axes = ("tensor_parallel", "pipeline_parallel", "sequence_parallel", "expert_parallel")
    used = [f"{name} {getattr(job.settings, name)}" for name in axes if getattr(job.settings, name) > 1]
    what = ", ".join(used) or f"a {job.model.kind} model"
    said = PlanWarning(
        code="no_script",
        severity="info",
        field="constraints",
        message=f"No training script is written for {what}; the configuration and launch files are.",
        fix="Point TRAIN_SCRIPT of launch.sh at your own.",
    )
    return files, (said,)
