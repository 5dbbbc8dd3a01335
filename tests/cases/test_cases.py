"""Out-of-memory and fit reports of users: the planner says of each what its reporter met.

What counts as right, by what a case expects:

* ``oom`` and ``oom_without_offload`` on the GPU: the verdict is does_not_fit, and it is the GPU that is short.
* ``oom_or_too_tight``: that, or the verdict is tight because of the GPU.
* ``oom`` on the host: does_not_fit, and it is the host that is short. Where the report is about loading or building the engine
  (``phase``), which a plan counts as its own files do it, the warning ``load_peak`` with the arithmetic of the other way is as right.
* ``oom_below``: the same on a node with 5 % less host memory than the report says is needed.
* ``tight`` on the host: the verdict is tight, or a warning speaks of the host.
* ``warn_init_peak``: the warning ``init_peak``.
* ``fit`` and ``fit_or_tight``: the verdict is fits or tight.

Where a report gives a range of memory, the prediction must touch it: some of allocated, reserved and device memory of a GPU, the peak
of a node's host memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.services.plan import answer
from app.services.request import PlanRequest
from tests.cases.reading import request_of

CASES = json.loads((Path(__file__).resolve().parents[1] / "data" / "cases.json").read_text())

NOT_A_PLAN: dict[str, str] = {}

WRONG: dict[str, str] = {}


def judged(case: dict[str, Any], body: dict[str, Any]) -> tuple[bool, str]:
    """Whether the answer is right, and the answer in short."""
    plan = answer(PlanRequest.model_validate(body)).document()
    memory = plan["recommended"]["memory"]
    gpu, host = memory["gpu"], memory["host_per_node"]
    short = {"gpu": gpu["needed_bytes"] > gpu["capacity_bytes"], "cpu": host["peak_bytes"] > (host["capacity_bytes"] or float("inf"))}
    codes = {w["code"] for w in plan["warnings"]}
    said = f"{plan['summary']} {sorted(codes)}"
    right = _verdict(case["expected"], plan["verdict"], short, codes) and _in_range(case["expected"], gpu, host)
    return right, said


def _verdict(expected: dict[str, Any], verdict: str, short: dict[str, bool], codes: set[str]) -> bool:
    device, refused = expected.get("device", "gpu"), verdict == "does_not_fit"
    match expected["verdict"]:
        case "fit" | "fit_or_tight":
            return not refused
        case "warn_init_peak":
            return "init_peak" in codes
        case "tight":
            return verdict == "tight" or bool({"host_tight", "load_peak"} & codes)
        case "oom_or_too_tight":
            return (refused and short[device]) or (verdict == "tight" and "tight" in codes)
        case "oom" | "oom_without_offload" | "oom_below":
            return (refused and short[device]) or ("phase" in expected and device == "cpu" and "load_peak" in codes)
    raise ValueError(f"no rule for {expected['verdict']}")


def _in_range(expected: dict[str, Any], gpu: dict[str, Any], host: dict[str, Any]) -> bool:
    if bounds := expected.get("gpu_gib_range"):
        low, high = (bound * 2**30 for bound in bounds)
        if gpu["device_bytes"] < low or gpu["peak_allocated_bytes"] > high:
            return False
    if bounds := expected.get("host_gb_range") or expected.get("cpu_gb_range"):
        return bool(bounds[0] <= host["peak_bytes"] / 1e9 <= bounds[1])
    return True


ASKED = {case["id"]: (case, body) for case in CASES if (body := request_of(case)) is not None}


@pytest.mark.parametrize("name", sorted(set(ASKED) - set(WRONG)))
def test_case_is_answered_right(name: str) -> None:
    """The verdict, the device that binds and the memory are what the report says."""
    right, said = judged(*ASKED[name])
    assert right, said


@pytest.mark.parametrize("name", sorted(WRONG))
def test_case_listed_as_wrong_is_wrong(name: str) -> None:
    """A case that has come right leaves the list."""
    right, said = judged(*ASKED[name])
    assert not right, f"{name} is right now; take it off the list: {said}"


def test_lists_are_of_cases_and_nine_in_ten_are_right() -> None:
    """What is not asked is what names no model or devices, and at most one in ten of the rest is wrong."""
    assert set(NOT_A_PLAN) == {case["id"] for case in CASES} - set(ASKED)
    assert set(WRONG) <= set(ASKED)
    assert len(WRONG) <= len(ASKED) / 10
