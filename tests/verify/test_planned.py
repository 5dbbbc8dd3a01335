"""What the service answers for a real question is accepted by DeepSpeed and trains under torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.services.plan import Answer, answer
from app.services.request import PlanRequest
from app.web.schemas import EXAMPLE_REQUEST
from tests.verify.agreement import LOW_LEARNING, assert_same
from tests.verify.harness import probe, train

pytestmark = pytest.mark.files("files of an answer", "torch", "deepspeed")


def planned(**constraints: Any) -> Answer:
    """Llama-3.1-8B on 1 × 8 H100 at sequence 8192, with some pins."""
    found = answer(PlanRequest.model_validate(EXAMPLE_REQUEST | {"constraints": constraints}))
    assert found.job is not None
    return found


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_deepspeed_reads_the_planned_config(tmp_path: Path, strategy: str) -> None:
    """DeepSpeed's parser accepts the file and finds the plan's batch on the plan's ranks."""
    found = planned(framework="deepspeed", strategy=strategy)
    text = next(a.text for a in found.plan.files if a.filename == "ds_config.json")
    (tmp_path / "ds_config.json").write_text(text)
    seen = probe("ds_config", tmp_path, "8", str(tmp_path / "ds_config.json"))[tmp_path.name]
    s = found.plan.recommended.settings
    assert seen["stage"] == int(strategy[-1])
    assert seen["batch"] == [s.global_batch, s.micro_batch, s.grad_accum]
    assert json.loads(text)["zero_optimization"]["reduce_bucket_size"] == s.reduce_bucket_numel


def test_planned_fsdp2_script_trains(tmp_path: Path) -> None:
    """The emitted FSDP2 script trains three steps of a shrunken model on two CPU ranks, as one rank does."""
    job = planned(framework="fsdp2", strategy="fsdp_full").job
    assert job is not None
    two = train(job, tmp_path / "two", ranks=2)
    one = train(job, tmp_path / "one", ranks=1)
    assert [step.number for step in two] == [1, 2, 3]
    assert_same(two, one, LOW_LEARNING)
