"""Checkpoints hold the bytes their plan says, and come out as ordinary weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from app.domain.checkpoint.plan import checkpoint_plan
from app.domain.checkpoint.result import CheckpointPlan
from app.domain.recipe.adapter import Adapter
from app.domain.recipe.recipe import Recipe
from app.emit.job import EmitJob
from app.emit.tiny import tiny_overrides
from app.ingest.hf_config import architecture_from_config
from tests.emit.jobs import TINY_LLAMA, make_job
from tests.verify.agreement import assert_same
from tests.verify.harness import probe, run_command, train

RANKS = 2
WORLD: dict[str, Any] = {"nodes": 1, "gpus_per_node": RANKS, "world_size": RANKS, "dp_shard": RANKS, "shard_group_size": RANKS}
ADAM: dict[str, Any] = {"framework": "deepspeed", "optimizer_implementation": "foreach"}
LORA: dict[str, Any] = {"kind": "lora", "rank": 4, "targets": "all-linear"}
SAVED: dict[str, dict[str, Any]] = {
    "fsdp2": {"framework": "fsdp2"},
    "ddp": {"framework": "ddp", "precision": "fp32"},
    "zero2": {**ADAM, "strategy": "zero2"},
    "zero3": {**ADAM, "strategy": "zero3"},
    "stage 0": {**ADAM, "strategy": "ddp"},
    "fsdp2 lora": {"framework": "fsdp2", "job": {"adapter": LORA}},
    "zero2 lora": {**ADAM, "strategy": "zero2", "job": {"adapter": LORA}},
}


def planned(job: EmitJob) -> CheckpointPlan:
    """The plan for the model the smoke test trains."""
    model = architecture_from_config({**TINY_LLAMA, **tiny_overrides(TINY_LLAMA)})
    adapter = Adapter(kind="lora", rank=4) if job.adapter else None
    s = job.settings
    return checkpoint_plan(model, Recipe(seq_len=64, precision=s.precision, adapter=adapter), s)


def parts(plan: CheckpointPlan) -> dict[str, int]:
    """Bytes by the names the probe uses."""
    out: dict[str, int] = {}
    for term in plan.terms:
        kind = term.name
        if plan.layout == "deepspeed":
            kind = "optimizer" if kind.startswith("masters") and "optim_states" in plan.files[1].name else "module"
        if kind != "random generators":
            out[kind] = out.get(kind, 0) + int(term.value)
    return out


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each script saved its first step."""
    out = {}
    for name, changes in SAVED.items():
        out[name] = tmp_path_factory.mktemp(name.replace(" ", "-"))
        train(make_job(**WORLD, **changes), out[name], ranks=RANKS, steps=1, extra=["--save-dir", "saved"])
    return out


def test_tensors_are_those_of_the_plan(folders: dict[str, Path], tmp_path: Path) -> None:
    """Weights, moments and counters to the byte; ZeRO pads each flat group to the ranks."""
    found = probe("checkpoints", tmp_path, *(str(next((folder / "saved").glob("step-*"))) for folder in folders.values()))
    for (name, changes), seen in zip(SAVED.items(), found, strict=True):
        expected = parts(planned(make_job(**WORLD, **changes)))
        padding = 0 if changes["framework"] != "deepspeed" else 12 * 4 * RANKS * 16
        assert {key: value for key, value in seen.items() if value} == {
            key: pytest.approx(value, abs=padding) for key, value in expected.items() if value
        }, name


def test_there_are_as_many_files_as_planned(folders: dict[str, Path]) -> None:
    """One a rank, and the module's where one rank writes it."""
    for name, changes in SAVED.items():
        kinds = ("*.distcp",) if changes["framework"] != "deepspeed" else ("*model_states.pt", "*optim_states.pt")
        folder = next((folders[name] / "saved").glob("step-*"))
        counts = [len(list(folder.glob(kind))) for kind in kinds]
        wanted = [f.count for f in planned(make_job(**WORLD, **changes)).files if f.bytes or "rank" in f.name]
        assert [count for count in counts if count] == wanted, name


@pytest.mark.parametrize("name", ["fsdp2", "ddp", "fsdp2 lora"])
def test_the_weights_come_out(folders: dict[str, Path], name: str) -> None:
    """One process without a launcher writes a folder with safetensors."""
    folder = folders[name]
    script = next(folder.glob("*_train.py"))
    command = [sys.executable, str(script), "--smoke-test", "--save-dir", "saved", "--export", "out"]
    run_command(command, folder)
    written = next((folder / "out").glob("*.safetensors")).stat().st_size
    export = planned(make_job(**WORLD, **SAVED[name])).exports[0]
    assert 0 <= written - export.output_bytes < 16_384


def test_adapters_resume_without_their_base(tmp_path: Path) -> None:
    """The checkpoint leaves the frozen base out; the run goes on as if it had never stopped."""
    job, save = make_job(**WORLD, **ADAM, strategy="zero3", job={"adapter": LORA}), ["--save-dir", str(tmp_path / "saved")]
    whole = train(job, tmp_path / "whole", ranks=RANKS, steps=3)
    train(job, tmp_path, ranks=RANKS, steps=2, extra=save)
    assert_same(train(job, tmp_path, ranks=RANKS, steps=3, extra=[*save, "--resume"]), whole[2:])
