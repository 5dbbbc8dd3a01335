"""Marks this folder and shares training runs, each of which costs about ten seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.emit.jobs import make_job
from tests.verify.harness import Step, train

Trainer = Callable[..., list[Step]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the verify extra."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.verify)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """``trained(ranks, **settings)``: the steps of a smoke test, run once for equal arguments."""
    known: dict[str, list[Step]] = {}

    def run(ranks: int, **changes: Any) -> list[Step]:
        key = repr((ranks, sorted(changes.items(), key=lambda item: item[0])))
        if key not in known:
            known[key] = train(make_job(**changes), tmp_path_factory.mktemp("run"), ranks=ranks)
        return known[key]

    return run


def assert_same(left: list[Step], right: list[Step], *, loss: float = 2e-6, norm: float = 2e-5) -> None:
    """Equal step numbers, losses and gradient norms, within what the summation order explains."""
    assert [step.number for step in left] == [step.number for step in right]
    assert len(left) > 0
    for one, other in zip(left, right, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=loss), (left, right)
        assert one.grad_norm == pytest.approx(other.grad_norm, abs=norm), (left, right)
