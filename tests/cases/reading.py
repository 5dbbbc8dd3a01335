"""Public user cases as planning requests: what people ran, in the words of the request, with every choice pinned.

A case gives a model by name or size, devices, a strategy, and what else its reporter told. What it does not tell is taken as such
runs usually are: full checkpointing, flash attention, micro-batch 1, 2,048 tokens, AdamW, bf16 with fp32 masters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.catalog.models import find_model
from app.domain.errors import InvalidRequestError

Given = Mapping[str, Any]

GPUS = {
    ("A100", 80): "a100-sxm-80gb", ("A100", 40): "a100-sxm-40gb", ("A800", 80): "a800-sxm-80gb", ("RTX 3090", 24): "rtx-3090",
    ("RTX 4090", 24): "rtx-4090", ("A10", 24): "a10", ("H100", 80): "h100-sxm-80gb", ("H100 NVL", 94): "h100-nvl",
    ("H200", 140): "h200-sxm", ("B200", 180): "b200-sxm",
}  # fmt: skip
"""Parts of the catalogue; any other is taken as an A100 with the memory its label says."""

SHAPES = {
    "baichuan-inc/Baichuan2-13B": {
        "num_layers": 40, "hidden_size": 5120, "num_heads": 40, "ffn_hidden_size": 13696, "vocab_size": 125696,
    },
}  # fmt: skip
"""Published shapes of models the catalogue has not; the size in a name is rounded (this one has 13.9e9 parameters)."""

TUNED = re.compile(r"-(Instruct|Chat|chat-hf|chat|it)$")
"""Endings of tuned models, which have the shape of their base."""

CHUNKED_LOSS = ("torchtune",)
"""Libraries whose recipes never hold whole logits."""

SAMPLE_TOKENS = {"torchtune": 512}
"""Libraries whose published runs train on samples this long at most (alpaca's) where they are not packed to the full length."""


def request_of(case: Given) -> dict[str, Any] | None:
    """The PlanRequest of a case; None where it names no model, size or devices to plan for."""
    given = case["input"]
    model = _model(given)
    if model is None or "gpus_per_node" not in given:
        return None
    training = _training(given) | {"fused_loss": any(name in case["source"] for name in CHUNKED_LOSS)}
    if not given.get("packed"):
        training["seq_len"] = min([training["seq_len"], *(n for name, n in SAMPLE_TOKENS.items() if name in case["source"])])
    return {
        "model": model,
        "training": training,
        "cluster": {"pools": [_pool(given, case["expected"])]},
        "constraints": _constraints(given),
    }


def partial_request_of(case: Given) -> dict[str, Any]:
    """What a case tells of its request, for a question that may leave parts out; an offload is in it as its reporter believed it."""
    given, whole = case["input"], request_of(case)
    if whole is not None:
        believed = "believes" in str(given.get("offload_optimizer", ""))
        return whole | ({"constraints": whole["constraints"] | {"offload_optimizer": "cpu"}} if believed else {})
    training = {
        name: given[key] for name, key in (("seq_len", "seq"), ("micro_batch", "micro_batch"), ("attention", "attention")) if key in given
    }
    model = _model(given)
    found: dict[str, Any] = {"training": training} | ({"model": model} if model else {})
    if "stage" in given:
        found["constraints"] = {"strategy": f"zero{given['stage']}"}
    if "gpus_per_node" in given:
        found["cluster"] = {"pools": [_pool(given, case["expected"] | {"verdict": "none"})]}
    return found


def _model(given: Given) -> dict[str, Any] | None:
    name = given.get("model", "")
    if shape := SHAPES.get(TUNED.sub("", name)):
        return {"shape": shape}
    for known in (name, TUNED.sub("", name), TUNED.sub("-hf", name)):
        try:
            return {"preset": find_model(known).key}
        except InvalidRequestError:
            continue
    sizes = re.findall(r"(\d+(?:\.\d+)?)[bB]\b", name)
    size = given.get("params_b") or (float(sizes[0]) if sizes else None)
    return {"params": size * 1e9} if size else None


def _training(given: Given) -> dict[str, Any]:
    dtype, optimizer = given.get("dtype", "bf16"), given.get("optimizer", "")
    training = {
        "seq_len": given.get("seq", 2048),
        "micro_batch": given.get("micro_batch", 1),
        "grad_accum": given.get("ga", 1),
        "activation_checkpointing": "full",
        "activation_offload": False,
        "precision": "fp16" if dtype == "fp16" else "bf16",
        "master_weights": "pure" not in dtype,
        "attention": given.get("attention", "flash"),
        "compile": given.get("compile", False),
        "optimizer": "paged_adamw_8bit" if "paged" in optimizer else "adamw",
        "optimizer_in_backward": "backward" in optimizer,
    }
    if adapter := given.get("peft"):
        training["adapter"] = {"kind": adapter["type"], "rank": adapter.get("r", 16)}
    return training


def _pool(given: Given, expected: Given) -> dict[str, Any]:
    key = GPUS.get((given.get("gpu", ""), given.get("gpu_mem_gb", 0)))
    pool = {"gpu": key or "a100-sxm-80gb", "gpus_per_node": given["gpus_per_node"], "nodes": given.get("nodes", 1)}
    if not key:
        pool["gpu_memory_gib"] = given.get("gpu_mem_gb", 80)
    ram = given.get("cpu_ram_gb")
    if expected["verdict"] == "oom_below":
        ram = expected["host_gb_needed"] * JUST_BELOW
    if isinstance(ram, int | float):
        pool["host_memory_gib"] = ram * 1e9 / 2**30
    return pool


JUST_BELOW = 0.95


def _constraints(given: Given) -> dict[str, Any]:
    """The strategy; open where a case is about loading only."""
    strategy, pins = given.get("strategy", ""), dict[str, Any]()
    if "stage" in given:
        pins = {"framework": "deepspeed", "strategy": f"zero{given['stage']}", "offload_optimizer": _place(given, "offload_optimizer"),
                "offload_parameters": _place(given, "offload_param")}  # fmt: skip
    elif "FSDP" in strategy:
        place = "cpu" if strategy.endswith("offload") else "none"
        pins = {"framework": "fsdp2", "strategy": "fsdp_full", "offload_optimizer": place, "offload_parameters": place}
    elif given["gpus_per_node"] * given.get("nodes", 1) == 1:
        pins = {"framework": "ddp", "strategy": "ddp"}
    return pins | ({"sequence_parallel": given["cp"]} if "cp" in given else {})


def _place(given: Given, key: str) -> str:
    """Where states are; an offload its reporter only believed in was not in effect, and of two the first is taken."""
    said = given.get(key, "none")
    return "none" if "believes" in said else said.split()[0]
