"""Public reports of users about FSDP and accelerate: the audit says what their reporters found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.audit.finding import Finding
from app.audit.subject import Subject
from tests.audit.torch_subjects import QLORA, cluster, found, model, subject

DATA = Path(__file__).resolve().parents[1] / "data" / "torch_cases.json"
CASES = {case["id"]: case for case in json.loads(DATA.read_text(encoding="utf-8"))}
BLOCKS = {
    "huggyllama/llama-7b": ("LlamaDecoderLayer",),
    "google-bert/bert-base-cased": ("BertLayer",),
    "maidalun1020/bce-embedding-base_v1": ("XLMRobertaLayer",),
    "google/gemma-3-270m": ("Gemma3DecoderLayer",),
}
EXPECTED = {
    "f-wrap-class-case": ("FS014", "error", "LlamaDecoderLayer"),
    "f-wrap-class-example": ("FS014", "error", "BertLayer"),
    "f-wrap-xlmr": ("FS014", "error", "XLMRobertaLayer"),
    "f-wrap-gemma3-270m": ("FS042", "warning", "needs no FSDP"),
    "f-hybrid-no-mesh": ("FS027", "error", "2-D device mesh"),
    "f-fsdp2-bad-reshard": ("FS007", "error", "neither true nor false"),
    "f-fsdp2-local-state": ("FS011", "error", "SHARDED_STATE_DICT"),
    "f-fsdp-bad-names": ("FS003", "error", "is none of"),
    "f-ram-efficient-not-wired": ("FS036", "warning", "not started by accelerate launch"),
    "f-fsdp1-peft-orig-params": ("FS039", "warning", "frozen weights"),
    "f-qlora-fsdp-storage": ("FS040", "error", "cannot be sharded"),
    "f-fsdp2-upcast": ("FS022", "info", "16 bytes, where pure bf16 takes 8"),
    "f-ckpt-recompute-mismatch": ("FS031", "error", "gradient_checkpointing"),
    "f-axolotl-70b-2x3090": ("FS041", "warning", "RTX 3090"),
    "c-mixtral-z2-offload-param": ("AC023", "warning", "is ignored at stage 2"),
}


def as_subject(given: dict[str, Any]) -> Subject:
    """A report as the file its reporter had."""
    adapter, facts = given.get("peft"), dict[str, Any]()
    if adapter is not None:
        facts = QLORA if adapter["type"] == "qlora" else {"adapter": adapter["type"], "trainable_params": 10**8}
    more: dict[str, Any] = {
        "model": model(**{"block_classes": BLOCKS.get(given.get("model", ""), ("LlamaDecoderLayer",)), **facts}),
        "arguments": given.get("hf_args", {}),
        "launcher": "deepspeed" if given.get("launcher") else "accelerate",
    }
    if "gpu_mem_gb" in given:
        more["cluster"] = cluster(gpu_name=given["gpu"], gpu_bytes=given["gpu_mem_gb"] * 10**9, gpus_per_node=given["gpus_per_node"])
    if given.get("gpus") == 1:
        more["cluster"] = cluster(gpus_per_node=1)
    if "accelerate_yaml" in given:
        return subject("accelerate", given["accelerate_yaml"], **more)
    named = {key: given[key] for key in ("fsdp_config", "mixed_precision", "bnb_4bit_quant_storage") if key in given}
    if "strategy" in given:
        said = given["strategy"].removeprefix("FSDP").strip()
        return subject("hf_trainer", {"fsdp": said or True, "optim": given.get("optimizer", "adamw_torch_fused"), **named}, **more)
    if set(named) == {"fsdp_config"}:
        return subject("fsdp", given["fsdp_config"], **more)
    return subject("accelerate", named, **more)


def said_of(name: str) -> dict[str, Finding]:
    """Findings about a case."""
    return found(as_subject(CASES[name]["input"]))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_report_is_found(name: str) -> None:
    """The rule, its severity, and the words that matter."""
    rule, severity, words = EXPECTED[name]
    finding = said_of(name)[rule]
    assert finding.severity == severity
    assert words in finding.message


def test_every_report_about_fsdp_is_asked() -> None:
    """None of the kind is left out."""
    assert {name for name, case in CASES.items() if case["kind"] == "f"} <= set(EXPECTED)


@pytest.mark.parametrize("name", [name for name in EXPECTED if CASES[name]["expected"].get("change")])
def test_the_change_is_the_one_that_helped(name: str) -> None:
    """What the reporter wrote in the end is among the edits, or in the words of the fix."""
    finding, change = said_of(name)[EXPECTED[name][0]], CASES[name]["expected"]["change"]
    values = [str(edit.value) for edit in finding.changes]
    assert any(value and value in change for value in values) or any(word in finding.fix for word in change.split())
