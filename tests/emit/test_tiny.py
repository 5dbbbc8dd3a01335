"""The model of --smoke-test keeps its family and loses its size."""

from __future__ import annotations

import json
from typing import Any

from app.emit.model_source import shaped_config, shaped_tiny
from app.emit.tiny import LAYERS, VOCAB, tiny_overrides
from tests import CONFIGS
from tests.emit.jobs import TINY_LLAMA, tiny_llama

LLAMA_8B = {
    **TINY_LLAMA,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def test_a_llama_keeps_its_head_size_and_grouping() -> None:
    """Two layers of four heads of 128, still fewer key/value heads than query heads."""
    small = {**LLAMA_8B, **tiny_overrides(LLAMA_8B)}
    assert (small["num_hidden_layers"], small["num_attention_heads"], small["num_key_value_heads"]) == (LAYERS, 4, 2)
    assert small["hidden_size"] // small["num_attention_heads"] == 4096 // 32
    assert small["vocab_size"] == VOCAB
    assert small["model_type"] == "llama"


def test_a_class_default_for_the_full_size_is_overruled() -> None:
    """A file without num_key_value_heads would get the class's, which four heads do not divide."""
    config = {key: value for key, value in LLAMA_8B.items() if key != "num_key_value_heads"}
    assert tiny_overrides(config)["num_key_value_heads"] == 4


def test_nested_parts_shrink_and_lists_follow_the_layers() -> None:
    """Text and vision parts are configs of their own; a list per layer is cut to as many layers."""
    config = {"text_config": LLAMA_8B, "layer_types": ["a", "b", "c"], "num_hidden_layers": 3, "eos_token_id": 128001}
    small = tiny_overrides(config)
    assert small["text_config"]["hidden_size"] == 512
    assert small["layer_types"] == ["a", "b"]
    assert small["eos_token_id"] < VOCAB


def test_a_shape_becomes_a_config_of_a_known_family() -> None:
    """Gated and dense is a Llama, experts make a Mixtral."""
    assert shaped_config(tiny_llama())["model_type"] == "llama"
    moe = shaped_config(tiny_llama(moe=True))
    assert (moe["model_type"], moe["num_local_experts"], moe["num_experts_per_tok"]) == ("mixtral", 4, 2)
    assert shaped_tiny(tiny_llama(hidden_size=4096))["hidden_size"] == 4096


def test_real_configs_get_small() -> None:
    """Every width, depth and vocabulary that a file names comes out small."""
    checked = 0
    for path in CONFIGS.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        config: dict[str, Any] = content.get("config", content)
        if "model_type" not in config:
            continue
        small = {**config, **tiny_overrides(config)}
        assert small.get("num_hidden_layers", 0) <= LAYERS, path.name
        assert small.get("vocab_size", 0) in (0, VOCAB), path.name
        assert small.get("hidden_size", 0) <= 2048, path.name
        checked += 1
    assert checked >= 40
