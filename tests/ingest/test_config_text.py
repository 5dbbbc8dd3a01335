"""Configuration files as found: read as their library reads them, and refused with the place where reading stopped."""

from __future__ import annotations

import pytest

from app.domain.errors import InvalidRequestError
from app.ingest.config_text import kind_of, read_object, read_text


def test_deepspeed_reads_comments_bare_keys_and_trailing_commas() -> None:
    """As hjson does."""
    text = '{\n  // ZeRO\n  zero_optimization: {stage: 2, reduce_bucket_size: 5e8\n  },\n  "bf16": {"enabled": true,},\n}'
    read = read_text(text)
    assert read.kind == "deepspeed"
    assert read.config["bf16"] == {"enabled": True}
    assert read.duplicates == ()


def test_keys_that_stand_twice_are_told() -> None:
    """The last one counts, and both are known about."""
    read = read_text('{"zero_optimization": {"stage": 2, "stage": 3}, "zero_optimization": {"stage": 1}}')
    assert read.config == {"zero_optimization": {"stage": 1}}
    assert set(read.duplicates) == {"stage", "zero_optimization"}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"zero_optimization": {"stage": 3}}, "deepspeed"),
        ({"train_batch_size": 8, "gradient_clipping": 1.0}, "deepspeed"),
        ({"compute_environment": "LOCAL_MACHINE", "deepspeed_config": {"zero_stage": 2}}, "accelerate"),
        ({"zero_stage": 2, "offload_param_device": "cpu"}, "accelerate"),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": True}, "fsdp"),
        ({"sharding_strategy": 4}, "fsdp"),
        ({"fsdp": "full_shard", "fsdp_config": {"version": 2}, "output_dir": "out"}, "hf_trainer"),
        ({"per_device_train_batch_size": 1, "deepspeed": "ds_config.json"}, "hf_trainer"),
        ({}, "deepspeed"),
    ],
)
def test_a_file_is_told_by_its_keys(config: dict[str, object], kind: str) -> None:
    """Whichever of the four it is."""
    assert kind_of(config) == kind


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('{"a": 1,\n "b": }', None, "line 2, column 7"),
        ("zero_stage: [1", None, "not YAML at line"),
        ("just words", None, "holds a str"),
        ('{"a": ' + "9" * 6000 + "}", None, "number that cannot be read"),
        ("{" * 3000, "deepspeed", "not JSON"),
        ('{"a": ' * 3000, None, "nested more than 32"),
        ("x" * 200_001, None, "at most 200,000 are read"),
    ],
)
def test_what_is_no_configuration_says_where(text: str, kind: str | None, words: str) -> None:
    """A message for people, at the field, and no stack trace."""
    with pytest.raises(InvalidRequestError) as refused:
        read_text(text, kind)
    assert words in refused.value.errors[0].msg
    assert refused.value.errors[0].loc == ("text",)


def test_objects_are_bounded_as_texts_are() -> None:
    """Whatever door they come by."""
    with pytest.raises(InvalidRequestError, match="at most 2,000"):
        read_object({str(n): n for n in range(3000)})
    assert read_object({1: {"2026": [1]}}).config == {"1": {"2026": [1]}}
