"""An existing configuration file against the plan's, key by key."""

from __future__ import annotations

import json

import pytest

from app.domain.errors import InvalidRequestError
from app.services.config_diff import ConfigDiff, config_diff
from app.services.config_meanings import MEANINGS
from app.services.plan import answer
from app.services.request import PlanRequest
from app.web.schemas import EXAMPLE_REQUEST

OURS = {
    "ds_config.json": '{"train_batch_size": 64, "bf16": {"enabled": true}, '
    '"zero_optimization": {"stage": 2, "reduce_bucket_size": 500000000}}',
    "accelerate.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\n",
}


def kinds(found: ConfigDiff) -> dict[str, str]:
    return {row.key: row.kind for row in found.rows}


def test_keys_are_compared_as_they_are_read() -> None:
    """Order and spelling of numbers do not count; a number is not true."""
    mine = '{"zero_optimization": {"reduce_bucket_size": 5e8, "stage": 3, "legacy": []}, "bf16": {"enabled": 1}}'
    found = config_diff(mine, OURS)
    assert found.file == "ds_config.json"
    assert kinds(found) == {
        "zero_optimization.reduce_bucket_size": "same",
        "zero_optimization.stage": "differs",
        "zero_optimization.legacy": "only yours",
        "bf16.enabled": "differs",
        "train_batch_size": "only the plan's",
    }
    stage = next(row for row in found.rows if row.key == "zero_optimization.stage")
    assert (stage.yours, stage.ours) == ("3", "2")
    assert "What is sharded" in stage.changes


def test_auto_is_said() -> None:
    """The launcher fills it in: no difference that can be read from the file."""
    row = config_diff('{"train_batch_size": "auto"}', OURS).rows[0]
    assert row.kind == "differs"
    assert row.changes.startswith("auto: the launcher fills it in")


def test_yaml_is_read_too() -> None:
    """accelerate's own spelling of truth."""
    found = config_diff("distributed_type: FSDP\nfsdp_config: {fsdp_version: '2', fsdp_offload_params: 'false'}\n", OURS)
    assert found.file == "accelerate.yaml"
    assert set(kinds(found).values()) == {"same"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing was given"),
        ("[1]", "holds a list"),
        ("just words", "holds a str"),
        ('{"a": }', "not JSON"),
        ("a: [1", "not YAML at line 1"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("a: " + "[" * 5000, "nested more than 32"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested more than 32"),
        ("a: 2026-99-99\n", "not YAML"),
        ("\N{REPLACEMENT CHARACTER}", "not UTF-8"),
        (json.dumps({str(n): n for n in range(3000)}), "3,001 values"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, words: str) -> None:
    """At the field, with where it goes wrong."""
    with pytest.raises(InvalidRequestError) as refused:
        config_diff(text, OURS)
    assert words in refused.value.errors[0].msg
    assert refused.value.errors[0].loc == ("existing",)


def test_a_file_the_plan_has_not_is_said() -> None:
    """With what it has, and how to get one."""
    with pytest.raises(InvalidRequestError, match="the plan has none: it has") as refused:
        config_diff('{"train_batch_size": 1}', {"accelerate.yaml": ""})
    assert "DeepSpeed" in refused.value.errors[0].hint


@pytest.mark.parametrize(("framework", "strategy"), [("deepspeed", "zero3"), ("deepspeed", "zero2"), ("fsdp2", "fsdp_full")])
def test_a_file_is_the_same_as_itself(framework: str, strategy: str) -> None:
    """Every file the planner writes can be read back, and most of its keys are explained."""
    body = EXAMPLE_REQUEST | {"constraints": {"framework": framework, "strategy": strategy}}
    files = {name: artifact.text for name, artifact in answer(PlanRequest.model_validate(body)).files().items()}
    for name in set(files) & set(MEANINGS):
        found = config_diff(files[name], files)
        assert found.file == name
        assert {row.kind for row in found.rows} == {"same"}
        assert sum(bool(row.changes) for row in found.rows) > len(found.rows) / 2
