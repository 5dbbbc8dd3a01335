"""What the checkpoint plan takes for granted about the scripts is what the emitters do."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.checkpoint.plan import checkpoint_plan
from app.domain.checkpoint.situation import Situation
from app.domain.recipe.adapter import Adapter
from app.domain.recipe.recipe import Recipe
from app.emit.job import EmitJob
from app.emit.launch import train_script
from tests.emit.jobs import make_job
from tests.emit.variants import all_jobs

AXES: dict[str, dict[str, Any]] = {
    f"{framework} {axis}": {"framework": framework, axis: 2}
    for framework in ("deepspeed", "fsdp2")
    for axis in ("pipeline_parallel", "sequence_parallel", "expert_parallel")
}
JOBS = all_jobs() | {name: make_job(**changes) for name, changes in AXES.items()}


def recipe_of(job: EmitJob) -> Recipe:
    """The recipe a job was made for, as far as checkpoints depend on it."""
    adapter = Adapter(kind=job.adapter["kind"], rank=8) if job.adapter else None
    return Recipe(seq_len=64, precision=job.settings.precision, optimizer=job.settings.optimizer, adapter=adapter)


@pytest.mark.parametrize("name", JOBS)
def test_a_script_is_named_where_one_is_written(name: str) -> None:
    """And nowhere else."""
    job = JOBS[name]
    written = train_script(job)
    assert Situation(model=job.model, recipe=recipe_of(job), settings=job.settings).scripted is (written is not None)
    plan = checkpoint_plan(job.model, recipe_of(job), job.settings)
    assert (plan.written_by.rpartition(" ")[2] == (written.filename if written else "own")) is True


@pytest.mark.parametrize("name", JOBS)
def test_what_a_command_asks_of_a_script_is_there(name: str) -> None:
    """Flags of the commands are flags of the script, and an adapter's base is left out where the plan says so."""
    job = JOBS[name]
    script = train_script(job)
    plan = checkpoint_plan(job.model, recipe_of(job), job.settings)
    text = script.text if script else ""
    for command in (c for e in plan.exports for c in e.commands if script and c.startswith(f"python {script.filename}")):
        for flag in (word for word in command.split() if word.startswith("--")):
            assert f'"{flag}"' in text
    if script and job.settings.framework == "deepspeed":
        assert ("exclude_frozen_parameters" in text) is (job.adapter is not None)
