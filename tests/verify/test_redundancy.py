"""DDP with ZeroRedundancyOptimizer trains what plain DDP trains, with the states of each tensor on one rank only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.emit.jobs import make_job
from tests.verify.agreement import assert_same
from tests.verify.conftest import Trainer
from tests.verify.harness import forget_steps_after, train

DDP: dict[str, Any] = {"framework": "ddp", "precision": "fp32"}
SHARDED: dict[str, Any] = {**DDP, "strategy": "zero1"}


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_divided_states_change_no_result(trained: Trainer, optimizer: str) -> None:
    """Whoever steps a tensor, everyone has the same afterwards."""
    assert_same(trained(2, **SHARDED, optimizer=optimizer), trained(2, **DDP, optimizer=optimizer))


def test_a_run_with_divided_states_resumes_on_any_number_of_ranks(tmp_path: Path) -> None:
    """States are gathered for the checkpoint and dealt out anew."""
    job, save = make_job(**SHARDED), ["--save-dir", str(tmp_path / "saved")]
    whole = train(job, tmp_path, ranks=2, steps=4, extra=[*save, "--save-every", "2"])
    for ranks in (2, 1):
        forget_steps_after(tmp_path / "saved", 2)
        assert_same(train(job, tmp_path, ranks=ranks, steps=4, extra=[*save, "--resume"]), whole[2:])
