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
from tests import CONFIGS

ROOT = Path(__file__).resolve().parents[2]
RELEASED = sorted(path.name for path in CONFIGS.glob("*.json"))
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
    record = json.loads((CONFIGS / name).read_text("utf-8"))
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
    seen = {name_of(json.loads((CONFIGS / name).read_text("utf-8"))["config"]) for name in RELEASED}
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
    "RefinedWeb", "RefinedWebModel", "Yi", "aquila", "baichuan", "exaone", "internlm", "internlm2", "internlm3", "llava_mistral",
    "llava_next_video", "llava_qwen", "minicpm", "minimax_m1", "minimax_text_01", "qwen2_5_vl_text", "qwen2_vl_text",
    "qwen3_vl_moe_text", "shieldgemma2", "stablelm_epoch", "xverse", "mllama_text_model",
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


REMOTE: list[tuple[int, dict[str, Any]]] = [
    (6_921_720_704, {"model_type": "RefinedWebModel", "hidden_size": 4544, "n_head": 71, "n_layer": 32,
                     "multi_query": True, "parallel_attn": True, "bias": False, "vocab_size": 65024}),
    (41_303_293_952, {"model_type": "RefinedWeb", "hidden_size": 8192, "n_head": 128, "n_head_kv": 8, "n_layer": 60,
                      "parallel_attn": True, "bias": False, "vocab_size": 65024}),
    (7_069_016_064, {"model_type": "bloom", "n_embed": 4096, "num_attention_heads": 32, "n_layer": 30,
                     "vocab_size": 250880}),
    (7_737_708_544, {"model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 92544,
                     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "bias": False}),
    (7_321_948_160, {"model_type": "internlm", "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 103168,
                     "num_hidden_layers": 32, "num_attention_heads": 32, "bias": True}),
    (7_505_973_248, {"model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 125696,
                     "num_hidden_layers": 32, "num_attention_heads": 32}),
    (2_724_880_896, {"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "vocab_size": 122753,
                     "num_hidden_layers": 40, "num_attention_heads": 36, "num_key_value_heads": 36}),
    (7_818_448_896, {"model_type": "exaone", "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 102400,
                     "num_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}),
    (9_399_951_360, {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 40,
                     "padded_vocab_size": 151552, "num_attention_heads": 32, "kv_channels": 128, "add_qkv_bias": True,
                     "multi_query_attention": True, "multi_query_group_num": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("total", "config"), REMOTE, ids=lambda value: value["model_type"] if isinstance(value, dict) else "")
def test_a_family_with_code_of_its_own_gives_the_published_total(total: int, config: dict[str, Any]) -> None:
    """Families that no library class builds agree with the totals published with their checkpoints."""
    assert counted_params(architecture_from_config(config)) == total
