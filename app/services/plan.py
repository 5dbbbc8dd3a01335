"""Use case: answer one planning request, with its files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app import ENGINE_VERSION
from app.domain.errors import ConflictError
from app.domain.plan import Artifact, Plan, PlanWarning
from app.domain.search.explain import describe
from app.domain.search.planner import make_plan
from app.domain.units import format_count, format_gib, format_number
from app.emit import FILE_KINDS, files_for
from app.emit.deepspeed import deepspeed_config
from app.emit.job import EmitJob
from app.services.document import plan_document
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


def answer(request: PlanRequest) -> Answer:
    """Plan, and write the files of the recommended settings.

    Raises:
        InvalidRequestError: the request makes no sense.
    """
    resolved = resolve(request)
    plan = make_plan(resolved.question)
    assumed = tuple(
        PlanWarning(code="assumed", severity="info", message=a, field="cluster.pools", fix="Give the figure to replace it.")
        for a in resolved.assumed
    )
    plan = replace(plan, warnings=assumed + plan.warnings)
    if plan.verdict == "does_not_fit":
        return Answer(request=request, plan=plan, job=None, gpu_name=resolved.gpu_name)
    job = _job(request, resolved, plan)
    missing = _not_written(plan)
    files = () if missing else files_for(job)
    warnings = plan.warnings + missing
    return Answer(
        request=request, plan=replace(plan, files=files, warnings=warnings), job=None if missing else job, gpu_name=resolved.gpu_name
    )


def file_of(request: PlanRequest, filename: str, *, dialect: str = "plain") -> Artifact:
    """One file of the recommended plan.

    Raises:
        ConflictError: nothing fits, or the file does not belong to the recommended framework.
    """
    given = answer(request)
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
        planned_allocated_bytes=best.gpu.peak_allocated_bytes,
        planned_reserved_bytes=best.gpu.peak_reserved_bytes,
    )


def _not_written(plan: Plan) -> tuple[PlanWarning, ...]:
    """Settings for which no file is written, said rather than written wrongly."""
    settings = plan.recommended.settings
    axes = {
        "tensor_parallel": settings.tensor_parallel, "pipeline_parallel": settings.pipeline_parallel,
        "sequence_parallel": settings.sequence_parallel, "expert_parallel": settings.expert_parallel,
    }  # fmt: skip
    used = [f"{name} {degree}" for name, degree in axes.items() if degree > 1]
    if not used:
        return ()
    return (
        PlanWarning(
            code="no_files", severity="warning", field="constraints", fix="Leave these degrees open to get files.",
            message=f"The figures hold for {', '.join(used)}, but the files written here are data-parallel only, so none is given.",
        ),
    )  # fmt: skip
