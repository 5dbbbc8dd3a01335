"""Every tensor counted: released configs, the catalogue, and neighbours built with the real classes."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.domain.model.architecture import Architecture
from app.domain.model.parameters import active_params, counted_params, is_moe
from app.ingest.hf_config import architecture_from_config, supported_families

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / ".." / "shared" / "data" / "model_configs"
RELEASED = sorted(path.name for path in SHARED.glob("*.json"))
CATALOGUE: list[dict[str, Any]] = json.loads((ROOT / "app" / "catalog" / "models.json").read_text("utf-8"))["models"]
NEIGHBOURS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "neighbours.json").read_text("utf-8"))


def shapes_of(model: Architecture) -> dict[str, int]:
    """How many tensors of each shape the whole model owns."""
    counted: Counter[str] = Counter()
    for stack in model.stacks:
        for weight in stack.block.weights:
            counted["x".join(map(str, weight.shape))] += weight.copies * stack.owned
    for weight in model.weights:
        counted["x".join(map(str, weight.shape))] += weight.copies
    return dict(sorted(counted.items()))


def layers_of(model: Architecture) -> dict[str, int]:
    """How many modules of each layer class the model has."""
    counted: Counter[str] = Counter()
    for stack in model.stacks:
        counted[stack.block.class_name] += stack.owned
    return dict(sorted(counted.items()))


def label(entry: dict[str, Any]) -> str:
    return f"{entry['config'].get('model_type', 'diffusers')}-{entry['class']}"


def test_the_released_configs_are_there() -> None:
    """The data this suite is about has to be present: a missing folder must not pass as nothing to do."""
    assert len(RELEASED) >= 60


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_config_is_counted_exactly(name: str) -> None:
    """Total and active parameters equal those of the model that transformers or diffusers builds."""
    record = json.loads((SHARED / name).read_text("utf-8"))
    model = architecture_from_config(record["config"])
    assert counted_params(model) == record["true_params"]
    assert active_params(model) == (record["active_params"] or record["true_params"])


@pytest.mark.parametrize("preset", CATALOGUE, ids=lambda preset: preset["key"])
def test_a_preset_is_counted_exactly(preset: dict[str, Any]) -> None:
    """A preset's config gives the preset's totals."""
    model = architecture_from_config(preset["config"])
    assert (counted_params(model), active_params(model)) == (preset["total_params"], preset["active_params"])


@pytest.mark.parametrize("entry", NEIGHBOURS, ids=label)
def test_a_neighbour_has_the_tensors_of_the_real_class(entry: dict[str, Any]) -> None:
    """Totals, class names, layers and the shape of every tensor agree with the class built on the meta device."""
    model = architecture_from_config(entry["config"])
    assert counted_params(model) == entry["total"]
    assert active_params(model) == entry["active"]
    assert model.model_class == entry["class"]
    assert shapes_of(model) == entry["shapes"]
    assert layers_of(model) == entry["layers"]


@pytest.mark.parametrize("preset", CATALOGUE, ids=lambda preset: preset["key"])
def test_a_preset_is_about_as_large_as_its_name_says(preset: dict[str, Any]) -> None:
    """The number in the key is the total within a half: a wrong dimension cannot hide behind a matching formula."""
    named = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)(m|b)(\d?)(?![a-z])", preset["key"])
    if named is None:
        assert preset["total_params"] > 10**6
        return
    told = float(named[1] + (f".{named[3]}" if named[3] else "")) * (1e6 if named[2] == "m" else 1e9)
    moe = is_moe(architecture_from_config(preset["config"]))
    assert preset["total_params"] == pytest.approx(told, rel=0.5) or moe


def test_every_family_is_exercised() -> None:
    """Each registered family is read at least once by the released, catalogue or neighbour configs."""
    seen = {name_of(json.loads((SHARED / name).read_text("utf-8"))["config"]) for name in RELEASED}
    seen |= {name_of(entry["config"]) for entry in (*CATALOGUE, *NEIGHBOURS)}
    nested = {
        section["model_type"]
        for entry in NEIGHBOURS
        for section in entry["config"].values()
        if isinstance(section, dict) and "model_type" in section
    }
    assert set(supported_families()) - seen - nested - UNBUILT == set()


# Families whose code came with the checkpoint (no class to build), or that share the adapter of one that is built.
UNBUILT = {
    "RefinedWeb", "RefinedWebModel", "Yi", "aquila", "baichuan", "exaone", "internlm2", "internlm3", "llava_mistral",
    "llava_next_video", "llava_qwen", "minicpm", "minimax_m1", "minimax_text_01", "qwen2_5_vl_text", "qwen2_vl_text",
    "qwen3_vl_moe_text", "shieldgemma2", "xverse", "mllama_text_model",
}  # fmt: skip


def name_of(config: dict[str, Any]) -> str:
    return str(config.get("model_type") or config.get("_class_name"))


def test_a_common_model_is_read_in_a_millisecond() -> None:
    """Reading a config is cheap enough to do it on every request."""
    config = next(preset["config"] for preset in CATALOGUE if preset["key"] == "llama-3.1-8b")
    architecture_from_config(config)
    started = time.perf_counter()
    for _ in range(50):
        architecture_from_config(config)
    assert (time.perf_counter() - started) / 50 < 5e-3
