"""Audits: what the file does is predicted as it runs, mended, and set beside our plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from app.domain.errors import InvalidRequestError
from app.domain.search.given import GivenSizes, given_candidate
from app.services.audit import audited
from app.services.audit_request import AuditRequest
from tests.planning import question_of

JOB: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "training": {"seq_len": 2048, "activation_checkpointing": "full"},
    "cluster": {"pools": [{"gpu": "a100-sxm-80gb", "gpus_per_node": 8, "host_memory_gib": 1024}]},
}
BATCH = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
BF16 = {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}


def audit_of(config: Any, **more: Any) -> dict[str, Any]:
    """The answer to an audit of a configuration."""
    given = {"text": config} if isinstance(config, str) else {"config": config}
    return audited(AuditRequest.model_validate(given | more)).document()


def found(document: dict[str, Any]) -> dict[str, str]:
    """Severity by id."""
    return {entry["id"]: entry["severity"] for entry in document["findings"]}


def test_the_files_own_sizes_are_counted() -> None:
    """A bucket of 5e8 elements and its flat copy hold 2 bytes each, and one bucket more where reduction overlaps."""
    question = question_of(JOB["model"], JOB["training"] | {"micro_batch": 1, "grad_accum": 1}, constraints={"strategy": "zero2"})
    pinned = replace(question, constraints=replace(question.constraints, offload_optimizer="none", offload_parameters="none"))

    def bucket(numel: int, *, overlap: bool) -> int:
        candidate = given_candidate(pinned, GivenSizes(bucket=numel, overlap_comm=overlap))
        (moment,) = (moment for moment in candidate.gpu.moments if moment.name == "end of backward")
        return sum(int(term.value) for term in moment.terms if term.name == "reduce bucket")

    assert bucket(200_000_000, overlap=False) == 2 * 2 * 200_000_000
    assert bucket(500_000_000, overlap=False) == 2 * 2 * 500_000_000
    assert bucket(500_000_000, overlap=True) == 3 * 2 * 500_000_000


def test_ignored_keys_are_ignored_in_the_prediction() -> None:
    """Parameter offload at stage 2 changes no figure, and says so; at stage 3 it does."""
    zero: dict[str, Any] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    plain = audit_of({**BATCH, **BF16, "zero_optimization": zero}, **JOB)
    ignored = audit_of({**BATCH, **BF16, "zero_optimization": zero | {"offload_param": {"device": "cpu"}}}, **JOB)
    assert found(ignored)["DS013"] == "warning"
    assert ignored["predicted"]["memory"] == plain["predicted"]["memory"]
    honoured = audit_of({**BATCH, **BF16, "zero_optimization": zero | {"stage": 3, "offload_param": {"device": "cpu"}}}, **JOB)
    assert honoured["predicted"]["settings"]["offload_parameters"] == "cpu"


def test_gain_is_the_file_less_our_plan() -> None:
    """For as many sequences a step, on the same GPUs."""
    document = audit_of({**BATCH, **BF16, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, **JOB)
    theirs, ours = document["predicted"], document["recommended"]
    assert ours["settings"]["global_batch"] == theirs["settings"]["global_batch"] == 8
    assert document["gain"]["step_s"] == pytest.approx(theirs["time"]["step_s"] - ours["time"]["step_s"])
    assert document["gain"]["speedup"] > 1
    gpus = (theirs["memory"]["gpu"]["device_bytes"], ours["memory"]["gpu"]["device_bytes"])
    assert document["gain"]["memory_bytes"] == gpus[0] - gpus[1]


def test_the_corrected_file_has_nothing_left_to_mend() -> None:
    """Auditing it again finds none of what was mended, and it is a file of the same kind."""
    config = {
        **BATCH,
        **BF16,
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}, "cpu_offload": True, "overlap_com": True},
    }
    first = audit_of(config, **JOB)
    mended = [e["id"] for e in first["findings"] if e["changes"] and e["severity"] != "info" and e["effect"] not in ("slow", "memory")]
    again = audit_of(first["corrected"]["ds_config.json"], kind="deepspeed", launcher="deepspeed", **JOB)
    assert mended
    assert not set(mended) & set(found(again))
    least = json.loads(first["minimal"]["ds_config.json"])
    assert set(least) <= set(json.loads(first["corrected"]["ds_config.json"]))


def test_yaml_stays_yaml_and_is_predicted() -> None:
    """accelerate's file under FSDP2."""
    text = """
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LLaMADecoderLayer
"""
    document = audit_of(text, **JOB)
    assert document["kind"] == "accelerate"
    assert document["predicted"]["settings"]["strategy"] == "fsdp_full"
    assert any(entry["path"].endswith("cls_to_wrap") and entry["severity"] == "error" for entry in document["findings"])
    mended = yaml.safe_load(document["corrected"]["accelerate.yaml"])
    assert mended["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] == "LlamaDecoderLayer"


def test_deepspeed_inside_the_trainers_arguments_is_read_too() -> None:
    """At its place in the file."""
    arguments = {"output_dir": "out", "per_device_train_batch_size": 1, "bf16": True}
    document = audit_of(arguments | {"deepspeed": {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}}, **JOB)
    assert any(entry["path"].startswith("deepspeed.zero_optimization.offload_param") for entry in document["findings"])


def test_without_model_and_gpus_what_was_not_checked_is_said() -> None:
    """And nothing is predicted."""
    document = audit_of({**BATCH, "zero_optimization": {"stage": 3}})
    assert document["predicted"] is None
    assert "model and training and cluster" in document["not_predicted"]
    assert {entry["needs"] for entry in document["not_checked"]} >= {"cluster"}


def test_a_key_twice_is_an_error_at_the_key() -> None:
    """As DeepSpeed's reader raises it."""
    assert found(audit_of('{"train_batch_size": 8, "train_batch_size": 8}'))["DS199"] == "error"


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"text": "{"}, ("text",)),
        ({"config": [1]}, ("config",)),
        ({"config": {}, "versions": {"deepspeed": "new"}}, ("versions", "deepspeed")),
        ({"config": {}, "model": {"preset": "no-such-model"}}, ("model", "preset")),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_field(body: dict[str, Any], loc: tuple[str, ...]) -> None:
    """With words for people."""
    with pytest.raises(InvalidRequestError) as refused:
        audited(AuditRequest.model_validate(body))
    assert refused.value.errors[0].loc == loc
