"""What is refused, and in which words: missing keys, unknown families, wrong values, and plain garbage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import InvalidRequestError, UnsupportedModelError
from app.ingest.hf_config import architecture_from_config, supported_families

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
NEIGHBOURS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "neighbours.json").read_text("utf-8"))


def refusal(config: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        architecture_from_config(config)
    return caught.value


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"])
def test_a_missing_size_is_named(key: str) -> None:
    """A size that the count needs is never guessed at the top level."""
    error = refusal({name: value for name, value in LLAMA.items() if name != key})
    assert isinstance(error, UnsupportedModelError)
    assert [e.loc for e in error.errors] == [("model", "hf_config", key)]
    assert "model.shape" in error.detail


def test_every_missing_size_is_named_at_once() -> None:
    """One answer lists all that is missing, with the spellings the family knows."""
    error = refusal({"model_type": "gpt2"})
    assert {e.loc[-1] for e in error.errors} == {
        "hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "max_position_embeddings",
    }  # fmt: skip
    assert "n_embd" in error.detail


def test_an_unknown_family_is_refused_with_the_nearest_and_the_way_out() -> None:
    """The answer names what was given, what comes close and what to do instead."""
    error = refusal({"model_type": "lama", "hidden_size": 64})
    assert isinstance(error, UnsupportedModelError)
    assert "'lama'" in error.detail
    assert "llama" in error.detail.replace("'lama'", "")
    assert "model.shape or model.params" in error.detail


def test_no_model_type_is_said_plainly() -> None:
    """A config without a family is not an unknown family."""
    assert "has no model_type" in refusal({"hidden_size": 64}).detail


def test_a_known_class_stands_for_its_family() -> None:
    """architectures[0] is enough where model_type is absent or new."""
    config = {**LLAMA, "model_type": "some_new_llama"}
    assert architecture_from_config(config).family == "llama"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", -1),
        ("hidden_size", 0),
        ("hidden_size", 10**30),
        ("hidden_size", True),
        ("hidden_size", float("nan")),
        ("hidden_size", float("inf")),
        ("hidden_size", "64"),
        ("hidden_size", [64]),
        ("num_hidden_layers", 10_001),
        ("num_hidden_layers", 2.5),
        ("num_key_value_heads", 3),
        ("vocab_size", 10**9),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 2),
        ("attention_dropout", -0.1),
        ("architectures", "LlamaForCausalLM"),
        ("architectures", [1]),
        ("model_type", 7),
    ],
)
def test_a_wrong_value_is_refused_at_its_field(key: str, value: Any) -> None:
    """Type, range and consistency are checked where the value stands."""
    error = refusal({**LLAMA, key: value})
    assert error.errors[0].loc == ("model", "hf_config", key)


def test_a_size_that_does_not_divide_is_refused_with_the_arithmetic() -> None:
    """Heads that do not divide the width need a head_dim."""
    error = refusal({**LLAMA, "hidden_size": 66})
    assert "66" in error.detail
    assert "head_dim" in error.detail


def test_a_wrong_nested_value_is_located_in_its_section() -> None:
    """The path leads into text_config."""
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": "wide"}, "vision_config": {}}
    assert refusal(config).errors[0].loc == ("model", "hf_config", "text_config", "hidden_size")


@pytest.mark.parametrize("config", [None, 3, "llama", [LLAMA], [("model_type", "llama")]])
def test_what_is_not_an_object_is_refused(config: Any) -> None:
    """Anything but a mapping is refused as such."""
    assert "is an object" in refusal(config).detail


@pytest.mark.parametrize("family", supported_families())
def test_an_empty_config_of_any_family_is_refused(family: str) -> None:
    """No adapter breaks, or guesses, when everything is missing."""
    key = "_class_name" if family.endswith("Model") and family[0].isupper() else "model_type"
    assert refusal({key: family}).errors


def test_the_first_llava_format_is_told_from_the_library_format() -> None:
    """model_type llava with flat language fields and a tower named by a string."""
    config = {**LLAMA, "model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"], "mm_hidden_size": 1024}
    named = {**config, "mm_vision_tower": "openai/clip-vit-large-patch14", "mm_projector_type": "mlp2x_gelu"}
    assert architecture_from_config(named).kind == "multimodal"
    assert "text_config" in refusal(config).detail
    assert "mm_vision_tower" in refusal({**named, "mm_vision_tower": "some/other-tower"}).detail


def deep(depth: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for _ in range(depth):
        config = {"text_config": config, "model_type": "llava"}
    return config


def test_a_bottomless_config_is_refused() -> None:
    """Sections nested in sections end in an answer, not in a crash."""
    assert isinstance(refusal(deep(5_000)), InvalidRequestError)


scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(NEIGHBOURS), st.data())
def test_a_mangled_config_is_counted_or_refused(entry: dict[str, Any], data: st.DataObject) -> None:
    """Any value in place of any key, at the top or one level down, gives a count or a refusal; never a crash."""
    config = dict(entry["config"])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        section = config[key]
        if isinstance(section, dict) and section and data.draw(st.booleans()):
            inner = data.draw(st.sampled_from(sorted(section)))
            config[key] = {**section, inner: data.draw(values)}
        else:
            config[key] = data.draw(values)
    try:
        model = architecture_from_config(config)
    except InvalidRequestError as error:
        assert error.errors
    else:
        assert model.stacks


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(supported_families()), st.dictionaries(st.sampled_from(sorted(LLAMA)), values))
def test_any_family_with_garbage_is_counted_or_refused(family: str, config: dict[str, Any]) -> None:
    """Random values under common keys never crash any adapter."""
    try:
        assert architecture_from_config({**config, "model_type": family}).stacks
    except InvalidRequestError as error:
        assert error.errors
