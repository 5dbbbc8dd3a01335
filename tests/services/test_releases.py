"""What is said of a named release: what it lacks, what it gets wrong, and that it was never looked at."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.plan import PlanWarning
from app.services.plan import answer
from tests.planning import request_of

MODEL = {"preset": "llama-3.2-1b"}
STEP = {"seq_len": 1024, "micro_batch": 1, "grad_accum": 2}


def said(release: dict[str, str], *, training: dict[str, Any] | None = None, **pins: Any) -> dict[str, PlanWarning]:
    """Warnings about releases, by code; nothing may be said twice."""
    request = request_of(MODEL, STEP | (training or {}), nodes=2, constraints=pins, **release)
    found = [w for w in answer(request).plan.warnings if w.code.startswith("release")]
    assert len({w.message for w in found}) == len(found)
    return {w.code: w for w in found}


LACKS: list[tuple[dict[str, str], dict[str, Any], dict[str, Any], str, str]] = [
    ({"deepspeed_version": "0.19.7"}, {}, {"strategy": "zero3", "tensor_parallel": 2}, "vocab_parallel_lm_head", "leaves it out"),
    ({"deepspeed_version": "0.19.7"}, {"grad_dtype": "fp32"}, {"strategy": "zero2"}, "16-bit dtype", "has it all the same"),
    ({"torch_version": "2.10"}, {}, {"strategy": "zero2", "offload_optimizer": "cpu"}, "powers of two", "leaves it out"),
]


@pytest.mark.parametrize(("release", "training", "pins", "words", "done"), LACKS)
def test_what_a_release_lacks_is_said(
    release: dict[str, str], training: dict[str, Any], pins: dict[str, Any], words: str, done: str
) -> None:
    """What is lost and what the file does; nothing without a release, and nothing of one that has it."""
    found = said(release, training=training, **pins)["release_lacks"]
    assert words in found.message
    assert done in found.message
    assert found.field == next(iter(release))
    assert not said({}, training=training, **pins)
    assert not said({"deepspeed_version": "0.19.8", "torch_version": "2.13.0"}, training=training, **pins)


@pytest.mark.parametrize(
    ("version", "strategy", "grad_accum", "wrong"),
    [
        ("0.17.5", "zero2", 2, False),
        ("0.17.6", "zero2", 2, True),
        ("0.18.2", "zero2", 2, True),
        ("0.18.3", "zero2", 2, False),
        ("0.18.2", "zero3", 2, False),
        ("0.18.2", "zero2", 1, False),
    ],
)
def test_a_release_that_trains_wrongly_is_an_error(version: str, strategy: str, grad_accum: int, wrong: bool) -> None:
    """DeepSpeed 0.17.6 to 0.18.2 lose gradients at stage 2 with accumulation (deepspeedai/DeepSpeed#7718)."""
    found = said({"deepspeed_version": version}, training={"grad_accum": grad_accum}, strategy=strategy)
    assert ("release_fault" in found) is wrong
    if wrong:
        assert found["release_fault"].severity == "error"
        assert "0.18.3" in found["release_fault"].fix


def test_a_release_nobody_has_looked_at_is_said() -> None:
    """Newer than the newest that was checked."""
    assert "0.19.8" in said({"deepspeed_version": "0.20.0"}, strategy="zero2")["release_unchecked"].message
    assert not said({"deepspeed_version": "0.19.8"}, strategy="zero2")
