"""Use case: answer one planning request, with its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app import ENGINE_VERSION
from app.domain.checkpoint.plan import checkpoint_plan
from app.domain.checkpoint.result import CheckpointPlan
from app.domain.errors import ConflictError, InvalidRequestError
from app.domain.plan import Artifact, Plan, PlanWarning
from app.domain.search.explain import describe
from app.domain.search.planner import make_plan
from app.domain.units import format_count, format_gib, format_number
from app.emit import FILE_KINDS, files_for, trainer_files
from app.emit.job import EmitJob
from app.ingest.hub import Hub
from app.observability import count_plan
from app.services.companions import left_out_of_files
from app.services.document import checkpoint_document, plan_document
from app.services.effort import EFFORT
from app.services.releases import release_warnings
from app.services.request import PlanRequest
from app.services.resolve import Resolved, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLabel:
    """What a plan that is going to be saved is called and found by."""

    id: str = ""
    name: str = ""


_UNSAVED = PlanLabel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan with the request it answers, as understood, and what its checkpoints are.

    Attributes:
        trainer_files: files of the ``hf_auto`` dialect, which come beside those of the plan.
        fetched: repository and commit of a model that was fetched from a hub.
    """

    request: PlanRequest
    plan: Plan
    checkpoint: CheckpointPlan
    job: EmitJob | None
    gpu_name: str
    trainer_files: tuple[Artifact, ...] = ()
    fetched: Mapping[str, str | None] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The JSON of the contract."""
        document = plan_document(self.plan, self.request)
        return document | {
            "model": document["model"] | self.fetched,
            "checkpoint": checkpoint_document(self.checkpoint),
            "dialects": {"hf_auto": {a.filename: a.text for a in self.trainer_files}},
        }

    def files(self, dialect: str = "plain") -> dict[str, Artifact]:
        """Every file by name; what both dialects have is of the one asked for."""
        plain = {artifact.filename: artifact for artifact in self.plan.files}
        trainer = {artifact.filename: artifact for artifact in self.trainer_files}
        return plain | trainer if dialect == "hf_auto" else trainer | plain


def answer(request: PlanRequest, hub: Hub | None = None, label: PlanLabel = _UNSAVED) -> Answer:
    """Plan as ``planned`` does, and count the plan."""
    made = planned(request, hub, label)
    count_plan(made.plan.verdict, made.plan.candidates, ((rejection.reason, rejection.count) for rejection in made.plan.rejected))
    return made


def planned(request: PlanRequest, hub: Hub | None = None, label: PlanLabel = _UNSAVED) -> Answer:
    """Plan, and write the files of the recommended settings.

    Args:
        request: what was asked.
        hub: where models named by ``hf_id`` are fetched from; None where that is switched off.
        label: of a plan that will be saved, for the headers of its files.

    Raises:
        InvalidRequestError: the request makes no sense.
        UnavailableError: the hub that a model is to be fetched from does not answer, or too many large searches are running.
    """
    resolved = resolve(request, hub)
    with EFFORT.budget() as budget:  # not while a model is fetched, which others need not wait for
        return answer_of(request, resolved, make_plan(resolved.question, budget), label)


def brief_plan(request: PlanRequest, hub: Hub | None = None) -> Plan:
    """The same plan without what a row of figures does not show: alternatives, ladder, ways out, checkpoints, the Trainer's files.

    Its files are written all the same, since some warnings are about them.

    Raises:
        InvalidRequestError, UnavailableError: as ``planned``.
    """
    resolved = resolve(request, hub)
    with EFFORT.budget() as budget:
        return _with_files(request, resolved, make_plan(resolved.question, budget, brief=True), _UNSAVED)[0]


def answer_of(request: PlanRequest, resolved: Resolved, plan: Plan, label: PlanLabel = _UNSAVED) -> Answer:
    """The answer a plan makes: with what was assumed, and the files of the recommended settings."""
    saved = checkpoint_plan(resolved.model.architecture, resolved.question.setup.recipe, plan.recommended.settings)
    plan, job = _with_files(request, resolved, plan, label)
    trainer = trainer_files(job) if job is not None and plan.files else ()
    fetched = {"hf_id": resolved.model.hf_id, "revision": resolved.model.commit} if resolved.model.commit else {}
    return Answer(
        request=request, plan=plan, checkpoint=saved, job=job if plan.files else None, gpu_name=resolved.gpu_name,
        trainer_files=trainer, fetched=fetched,
    )  # fmt: skip


def _with_files(request: PlanRequest, resolved: Resolved, plan: Plan, label: PlanLabel) -> tuple[Plan, EmitJob | None]:
    """The plan with its files and every warning; and what the files were written from, None where nothing fits."""
    assumed = tuple(
        PlanWarning(code="assumed", severity="info", message=a, field="cluster.pools", fix="Give the figure to replace it.")
        for a in resolved.assumed
    )
    plan = replace(plan, warnings=assumed + plan.warnings)
    job = None if plan.verdict == "does_not_fit" else replace(_job(request, resolved, plan), plan_id=label.id, plan_name=label.name)
    if job is not None:
        files, unwritten = _files(job)
        plan = replace(plan, files=files, warnings=(*plan.warnings, *unwritten, *left_out_of_files(plan), *release_warnings(job)))
    return plan, job


def judged(request: PlanRequest) -> Plan:
    """The brief plan alone, for whoever is still typing: no files, not counted, and no model fetched.

    Raises:
        InvalidRequestError: the request makes no sense, or its model would have to be fetched.
        UnavailableError: too many large searches are running.
    """
    resolved = resolve(request)
    with EFFORT.budget() as budget:
        return make_plan(resolved.question, budget, brief=True)


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
    if artifact := given.files(dialect).get(filename):
        return artifact
    if filename not in FILE_KINDS:
        raise ConflictError(f"{filename} cannot be written for this plan: the Trainer has no arguments for its parallelism")
    belongs = ", ".join(FILE_KINDS[filename])
    raise ConflictError(
        f"{filename} belongs to {belongs}, but the recommended plan runs on {framework}. "
        f"Pin constraints.framework to {FILE_KINDS[filename][0]} to get it."
    )


def _job(request: PlanRequest, resolved: Resolved, plan: Plan) -> EmitJob:
    best = plan.recommended
    figures = {
        "model": f"{plan.model.name}, {format_count(plan.model.total_params)} parameters",
        **({"commit": resolved.model.commit} if resolved.model.commit else {}),
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
        revision=resolved.model.commit,
        hf_config=resolved.model.hf_config,
        adapter=adapter,
        engine_version=ENGINE_VERSION,
        figures=figures,
        versions=resolved.question.constraints.versions,
        # A script that trains one of several models is not compared with the peak of all of them.
        planned_allocated_bytes=None if plan.companions else best.gpu.peak_allocated_bytes,
        planned_reserved_bytes=None if plan.companions else best.gpu.peak_reserved_bytes,
    )


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
    needs = _helper(job)
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
    return files, (said, *needs)


def _helper(job: EmitJob) -> tuple[PlanWarning, ...]:
    """Sequences are split by code around the model, whatever a configuration file says."""
    s = job.settings
    if s.sequence_parallel == 1:
        return ()
    if s.framework == "deepspeed":
        message = "ds_config.json splits no sequence: its sizes only change how batches are counted."
        fix = (
            "Use training_args.py with the Trainer, or accelerate.yaml; with deepspeed.initialize call "
            "UlyssesSPAttentionHF.register_with_transformers, hand over its mpu and wrap the loader in UlyssesSPDataLoaderAdapter."
        )
    else:
        message = "A mesh with a context axis splits no sequence by itself."
        fix = "Use training_args.py with the Trainer, or run forward and backward inside accelerator.maybe_context_parallel(…)."
    said = PlanWarning(
        code="sequence_parallel_needs_helper", severity="warning", field="constraints.sequence_parallel", message=message, fix=fix
    )
    return (said,)
