"""Planning works for every model that can be counted, and the answer is consistent with the request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.catalog.models import load_models
from app.services.plan import answer
from app.services.request import PlanRequest
from tests import CONFIGS

RELEASED = sorted(CONFIGS.glob("*.json"))
POOL = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 8, "host_memory_gib": 2048}


def plan_document(model: dict[str, Any], **training: Any) -> dict[str, Any]:
    """The answer for a model on eight nodes."""
    body = {"model": model, "training": {"seq_len": 512, "micro_batch": 1} | training, "cluster": {"pools": [POOL]}}
    return answer(PlanRequest.model_validate(body)).document()


@pytest.mark.parametrize("path", RELEASED, ids=[p.stem for p in RELEASED])
def test_every_known_config_is_planned_and_counted_exactly(path: Path) -> None:
    """Total and active parameters of the answer are the true ones, and the plan is finite."""
    case = json.loads(path.read_text())
    plan = plan_document({"hf_config": case["config"]})
    assert plan["model"]["total_params"] == case["true_params"]
    if case.get("active_params"):
        assert plan["model"]["active_params"] == case["active_params"]
    assert plan["recommended"]["time"]["step_s"] > 0
    assert plan["recommended"]["memory"]["gpu"]["device_bytes"] > 0
    assert bool(plan["files"]) is (plan["verdict"] != "does_not_fit")


@pytest.mark.parametrize("preset", [m.key for m in load_models()])
def test_every_preset_is_planned(preset: str) -> None:
    """A preset plans with an adapter as well as in full, and the adapter needs less memory."""
    full = plan_document({"preset": preset}, activation_checkpointing="full")
    adapter = plan_document({"preset": preset}, activation_checkpointing="full", adapter={"kind": "lora"})
    assert 0 < adapter["model"]["trainable_params"] < full["model"]["trainable_params"]


def test_configs_are_there() -> None:
    """An empty folder would make the tests above say nothing."""
    assert len(RELEASED) > 50
