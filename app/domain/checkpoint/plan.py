"""The checkpoint plan of one candidate: files, bytes, exports, resuming, inference."""

from __future__ import annotations

from app.domain.checkpoint import dcp, deepspeed
from app.domain.checkpoint.inference import inference_of
from app.domain.checkpoint.result import CheckpointPlan
from app.domain.checkpoint.situation import Situation
from app.domain.checkpoint.terms import total_bytes
from app.domain.model.architecture import Architecture
from app.domain.plan import Settings
from app.domain.recipe.recipe import Recipe


def checkpoint_plan(model: Architecture, recipe: Recipe, settings: Settings) -> CheckpointPlan:
    """What one save of these settings writes, and what can be done with it.

    Args:
        model, recipe: what is trained, and how.
        settings: the candidate's, whose framework decides the format.
    """
    case = Situation(model=model, recipe=recipe, settings=settings)
    return _deepspeed(case) if settings.framework == "deepspeed" else _dcp(case)


def _dcp(case: Situation) -> CheckpointPlan:
    terms, files = dcp.dcp_terms(case), dcp.dcp_files(case)
    return CheckpointPlan(
        layout="dcp",
        written_by=f"torch.distributed.checkpoint.save in {case.script(dcp.SCRIPTS[case.settings.framework])}",
        files=files,
        terms=terms,
        per_save_bytes=total_bytes(terms),
        per_rank_bytes=max(f.largest_bytes for f in files),
        exports=dcp.dcp_exports(case),
        resume=dcp.dcp_resume(case),
        inference=inference_of(case),
        notes=(*dcp.dcp_notes(case), *_own(case)),
    )


def _deepspeed(case: Situation) -> CheckpointPlan:
    terms, files = deepspeed.deepspeed_terms(case), deepspeed.deepspeed_files(case)
    return CheckpointPlan(
        layout="deepspeed",
        written_by=f"engine.save_checkpoint in {case.script('ds_train.py')}",
        files=files,
        terms=terms,
        per_save_bytes=total_bytes(terms),
        per_rank_bytes=sum(f.largest_bytes for f in files),
        exports=deepspeed.deepspeed_exports(case),
        resume=deepspeed.deepspeed_resume(case),
        inference=inference_of(case),
        notes=(*deepspeed.deepspeed_notes(case), *_own(case)),
    )


def _own(case: Situation) -> tuple[str, ...]:
    """What the emitted scripts do not save."""
    return ("The averaged copy of the weights is the trainer's own: save it as well.",) if case.recipe.ema else ()
