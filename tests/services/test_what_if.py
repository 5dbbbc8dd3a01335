"""What-if curves: each point is the plan of a request that names it, and the place where fitting stops is the place."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import InvalidRequestError
from app.services.plan import planned
from app.services.request import PlanRequest
from app.services.what_if import SEQUENCE_STEP, VARIABLES, Curve, Variable, curve, pinned
from tests.planning import request_of

LLAMA = {"preset": "llama-3.1-8b"}
ASKED: dict[str, PlanRequest] = {
    "a global batch": request_of(LLAMA, {"seq_len": 8192, "global_batch": 64}),
    "no global batch": request_of(LLAMA, {"seq_len": 4096, "activation_checkpointing": "full"}),
    "two nodes, offloaded": request_of(
        {"preset": "llama-3.1-70b"}, {"seq_len": 8192, "global_batch": 64}, nodes=2, constraints={"offload_optimizer": "cpu"}
    ),
    "hybrid shards": request_of(LLAMA, {"seq_len": 4096}, nodes=4, constraints={"strategy": "hsdp"}),
    "tensor ranks": request_of(LLAMA, {"seq_len": 4096, "global_batch": 32}, constraints={"tensor_parallel": 2}),
    "a longest sequence": request_of(LLAMA, {"seq_len": 4096, "micro_batch": 1}, objective="longest_sequence"),
    "part of a node": request_of(LLAMA, {"seq_len": 1024, "adapter": {"kind": "lora"}}, objective="fewest_gpus"),
    "nothing fits": request_of({"preset": "llama-3.1-405b"}, {"seq_len": 8192}, constraints={"strategy": "zero1"}),
}


def settings_of(request: PlanRequest) -> dict[str, Any]:
    found: dict[str, Any] = planned(request).document()["recommended"]["settings"]
    return found


def moved(request: PlanRequest, settings: dict[str, Any], variable: Variable, value: int) -> PlanRequest:
    """The request of one point, written out: everything pinned, one thing changed."""
    gpus, nodes, changes = settings["gpus_per_node"], settings["nodes"], {}
    if variable == "gpus":
        gpus, nodes = min(gpus, value), max(1, value // gpus)
    else:
        changes = {"seq_len" if variable == "sequence" else "micro_batch": value}
    pool = request.cluster.pools[0].model_copy(update={"gpus_per_node": gpus, "nodes": nodes})
    return pinned(request, settings, **changes).model_copy(update={"cluster": request.cluster.model_copy(update={"pools": [pool]})})


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("name", ASKED)
def test_points_are_the_plans_of_requests_that_name_them(name: str, variable: Variable) -> None:
    """Bytes, seconds, batch and verdict are those of a whole planning run, at every third point and at the plan itself."""
    request = ASKED[name]
    settings = settings_of(request)
    found = curve(request, settings, variable)
    here = [p for p in found.points if p.value == found.at]
    assert len(here) == 1
    for point in [*found.points[::3], *here]:
        asked = PlanRequest.model_validate(moved(request, settings, variable, point.value).model_dump())
        best = planned(asked).plan.recommended
        assert (point.device_bytes, point.step_s, point.tokens_per_s) == (best.gpu.device_bytes, best.time.step_s, best.time.tokens_per_s)
        assert (point.micro_batch, point.grad_accum) == (best.settings.micro_batch, best.settings.grad_accum)
        assert point.verdict == best.verdict
        assert point.fits == (best.verdict != "does_not_fit")


@pytest.mark.parametrize("name", ASKED)
def test_the_curve_goes_through_the_plan(name: str) -> None:
    """At the plan's own value it has the plan's figures."""
    request = ASKED[name]
    answer = planned(request)
    best = answer.plan.recommended
    for variable in VARIABLES:
        found = curve(request, settings_of(request), variable)
        (here,) = (p for p in found.points if p.value == found.at)
        assert (here.device_bytes, here.step_s, here.verdict) == (best.gpu.device_bytes, best.time.step_s, best.verdict)
        assert found.capacity_bytes == best.gpu.capacity_bytes


@pytest.mark.parametrize("name", ["a global batch", "no global batch", "two nodes, offloaded", "a longest sequence"])
def test_the_longest_sequence_is_found(name: str) -> None:
    """The last length that fits does, and one step more does not."""
    request = ASKED[name]
    settings = settings_of(request)
    found = curve(request, settings, "sequence")
    assert found.last_fit is not None
    assert found.step == SEQUENCE_STEP
    for length, fits in ((found.last_fit, True), (found.last_fit + found.step, False)):
        assert (planned(pinned(request, settings, seq_len=length)).plan.verdict != "does_not_fit") is fits


def values(found: Curve) -> list[int]:
    return [p.value for p in found.points]


def test_batch_rules_are_kept() -> None:
    """A global batch that is named stays and decides which micro-batches there are; otherwise the accumulation stays."""
    request = ASKED["a global batch"]
    found = curve(request, settings_of(request), "micro-batch")
    assert values(found) == [1, 2, 4, 8]
    assert {p.global_batch for p in found.points} == {64}
    free = ASKED["no global batch"]
    settings = settings_of(free)
    found = curve(free, settings, "micro-batch")
    assert len(found.points) > 8
    assert {p.grad_accum for p in found.points} == {settings["grad_accum"]}
    assert {p.global_batch for p in curve(request, settings_of(request), "gpus").points} == {64}


def test_values_that_cannot_be_are_left_out_with_the_reason() -> None:
    """24 ranks do not divide a batch of 64."""
    request = ASKED["a global batch"]
    found = curve(request, settings_of(request), "gpus")
    assert found.left_out == (24,)
    assert "64" in found.reason
    assert values(found) == [1, 2, 4, 8, 16, 32]


def test_the_pools_a_plan_uses_are_the_ones_that_grow() -> None:
    """Of two unequal pools the plan's own is moved; joined ones keep the slower device's figures."""
    pools = [{"gpu": "h100-sxm-80gb", "nodes": 1}, {"gpu": "a100-sxm-80gb", "nodes": 2}]
    body = {"model": LLAMA, "training": {"seq_len": 4096}, "cluster": {"pools": pools}}
    request = PlanRequest.model_validate(body)
    best = planned(request).plan.recommended
    for variable in VARIABLES:
        found = curve(request, settings_of(request), variable)
        (here,) = (p for p in found.points if p.value == found.at)
        assert (here.device_bytes, here.step_s) == (best.gpu.device_bytes, best.time.step_s)


def test_what_cannot_be_computed_at_all_says_why() -> None:
    """Settings of another request: a tensor degree that the model's heads do not allow."""
    request = ASKED["a global batch"]
    with pytest.raises(InvalidRequestError, match="tensor_parallel 3"):
        curve(request, settings_of(request) | {"tensor_parallel": 3}, "sequence")
