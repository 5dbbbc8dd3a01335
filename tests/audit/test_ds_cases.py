"""Public reports of users about DeepSpeed files: the audit says what their reporters found out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.audit.finding import Finding
from app.audit.rules import audit
from app.audit.subject import ClusterFacts, ModelFacts, Subject
from app.domain.recipe.recipe import Recipe
from app.services.audit_subject import model_facts
from app.services.request import ModelIn, TrainingIn
from app.services.resolve import recipe_of, resolve_model
from tests.audit.facts import LLAMA_8B, NODE, TRAINING, subject
from tests.cases.reading import request_of

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).resolve().parents[1] / "data" / "deepspeed_cases.json").read_text(encoding="utf-8"))
}
EXPECTED = {
    "c-batch-triple": ("DS002", "error", "2 × 1 × 1 = 2 is not train_batch_size 8"),
    "c-batch-triple-starcoder": ("DS002", "error", "4 × 8 × 1 = 32 is not train_batch_size 64"),
    "c-bf16-pre-ampere": ("DS075", "error", "compute capability 8.0"),
    "c-fp16-p100": ("DS075", "error", "can only do fp32"),
    "c-auto-batch-outside-hf": ("DS003", "error", "auto"),
    "c-bucket-string": ("DS065", "error", 'the text "5e8"'),
    "c-ga-string": ("DS094", "error", "look equal"),
    "c-hf-mismatch-apps": ("DS072", "error", "128"),
    "c-optimizer-no-scheduler-old": ("DS098", "warning", "wants a scheduler"),
    "c-unknown-optimizer": ("DS037", "error", "DeepSpeedCPUAdam"),
    "c-client-optimizer-offload": ("DS038", "error", "AdamW"),
    "c-offload-param-stage2": ("DS013", "warning", "ignored at stage 2"),
    "c-nvme-no-path": ("DS015", "error", "without nvme_path"),
    "c-buffer-size-in-offload-optimizer": ("DS005", "error", "has no buffer_size"),
    "c-device-typo": ("DS066", "error", "none, cpu, nvme"),
    "c-cpu-offload-old-key": ("DS067", "warning", "offload_optimizer.device cpu"),
    "c-elasticity-removed": ("DS007", "error", "removed"),
    "c-gather-old-name": ("DS067", "warning", "stage3_gather_16bit_weights_on_model_save"),
    "c-hpz-not-divisor": ("DS033", "error", "4 ranks are not divisible by the hpZ group of 3"),
    "c-hpz-larger-than-world": ("DS033", "warning", "clamped to 4"),
    "c-hpz-two-models": ("DS077", "warning", "second engine"),
    "c-ulysses-heads-qwen14b": ("DS078", "error", "40 query and 8 key-value heads"),
    "c-ulysses-z3-not-sharded": ("DS079", "warning", "HfDeepSpeedConfig"),
    "c-pipeline-z2": ("DS052", "error", "pipeline"),
    "c-ds-moe-z3": ("DS053", "error", "stage 3"),
    "c-qlora-z3-old": ("DS082", "warning", "float dtype"),
    "c-qlora-z3-full-load": ("DS082", "warning", "while loading"),
    "c-nvme-buffer-too-small": ("DS017", "error", "524,709,888 elements > buffer_size 100,000,000"),
    "c-nvme-not-enough-buffers": ("DS087", "warning", "buffer_count is 5"),
    "c-zero3-compile": ("DS083", "warning", "compiled"),
    "c-bf16-optim-states": ("DS046", "error", "bf16_master_weights_and_grads"),
    "c-overlap-default": ("DS028", "info", "false at stage 2"),
    "c-auto-nested-hidden": ("DS081", "info", "auto becomes"),
    "c-auto-t5-11b": ("DS080", "warning", "1,048,576"),
    "c-mixtral-z3-hang": ("DS054", "warning", "experts are gathered one by one"),
    "b-nvme-buffers-pinned": ("DS103", "warning", "8 GB"),
    "e-lora-14b-2x2a10": ("DS086", "warning", "of the network"),
    "e-lora-z3-10gbe": ("DS085", "warning", "no sharding of weights is needed"),
    "e-qwen2-15b-2node-a10": ("DS085", "warning", "no sharding of weights is needed"),
    "e-falcon-offload-cost": ("DS084", "warning", "without offload"),
    "e-72b-multinode": ("DS086", "warning", "a copy in each node"),
}
"""The rule, its severity, and the words that matter."""

AUTO = {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
CONTEXT: dict[str, dict[str, Any]] = {
    "c-batch-triple": {"world_size": 1},
    "c-optimizer-no-scheduler-old": {"launcher": "hf_trainer", "releases": {"transformers": "4.31.0"}},
    "c-hpz-two-models": {"model": replace(LLAMA_8B, multimodal=True)},
    "c-ulysses-heads-qwen14b": {"sp": 16},
    "c-ds-moe-z3": {"model": replace(LLAMA_8B, is_moe=True, moe_class="deepspeed.moe.layer.MoE")},
    "c-mixtral-z3-hang": {"release": "0.17.6"},
    "c-nvme-buffer-too-small": {"model": replace(LLAMA_8B, largest_param_numel=524_709_888)},
}
"""What a report says in words that are no field: how many ranks were seen, which releases, and what the model was made of."""
NETWORK, TEN_GBE = 12.5e9, 1.25e9
"""Bytes a second of a node where none is told: 100 Gbit/s; and of the 10 GbE of one report."""


def as_subject(name: str) -> Subject:
    """A report as the file its reporter had."""
    given, context = CASES[name]["input"], dict(CONTEXT.get(name, {}))
    file = given.get("ds_config")
    stage = given.get("stage", 3)
    config = file if isinstance(file, dict) else {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    if not isinstance(file, dict):
        config["zero_optimization"] = AUTO if file else {"stage": stage if isinstance(stage, int) else 3, **_offload(name)}
    hf = given.get("framework") == "HF Trainer" or "hf_args" in given or (isinstance(file, str) and "auto" in file)
    more: dict[str, Any] = {"launcher": "hf_trainer" if hf else "deepspeed", "arguments": _arguments(given.get("hf_args", {}))}
    more |= {
        "world_size": given.get("world_size", given.get("hf_args", {}).get("gpus")),
        "client_optimizer": given.get("client_optimizer", ""),
    }
    more |= {"sp": given.get("sp", 1), "pp": given.get("pp", 1), "model": _model(given), "cluster": _cluster(given)}
    if given.get("torch_compile"):
        more["training"] = replace(TRAINING, compile=True)
    return subject(config, **(more | context))


def _offload(name: str) -> dict[str, Any]:
    """The offloads of the one report that compares them."""
    return {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}} if "offload" in name else {}


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    names = {"per_device": "per_device_train_batch_size", "ga": "gradient_accumulation_steps"}
    return {names.get(key, key): value for key, value in given.items() if key != "gpus"}


def _model(given: dict[str, Any]) -> ModelFacts | None:
    asked = request_of({"input": {"gpus_per_node": 1, **given}, "source": "", "expected": {"verdict": ""}})
    if asked is None:
        return None
    training = {"seq_len": 2048, **({"adapter": asked["training"]["adapter"]} if "adapter" in asked["training"] else {})}
    model = resolve_model(ModelIn.model_validate(asked["model"])).architecture
    recipe: Recipe = recipe_of(TrainingIn.model_validate(training))
    return model_facts(model, recipe)


def _cluster(given: dict[str, Any]) -> ClusterFacts | None:
    if "gpu" not in given:
        return None
    nodes = given.get("nodes", 1)
    network = TEN_GBE if "10 GbE" in given.get("network", "") else NETWORK
    return replace(
        NODE, gpu_name=given["gpu"], gpu_architecture="", supports=frozenset(), gpu_bytes=given.get("gpu_mem_gb", 16) * 10**9,
        gpus_per_node=given.get("gpus_per_node", 1), nodes=nodes, inter_node_bytes_per_s=network if nodes > 1 else None,
    )  # fmt: skip


def said_of(name: str) -> dict[str, list[Finding]]:
    """Findings about a case, by rule."""
    out = dict[str, list[Finding]]()
    for finding in audit(as_subject(name)).findings:
        out.setdefault(finding.id, []).append(finding)
    return out


@pytest.mark.parametrize("name", EXPECTED)
def test_a_report_is_found(name: str) -> None:
    """The rule, its severity, and the words that matter."""
    rule, severity, words = EXPECTED[name]
    found = said_of(name).get(rule, [])
    assert any(finding.severity == severity and words in finding.message for finding in found), found


def test_every_report_is_expected() -> None:
    """No report of the file is left out."""
    assert set(EXPECTED) == set(CASES)
