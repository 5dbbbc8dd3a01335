"""What is too large to be counted in 64-bit numbers is refused at its field, before anything is searched."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

SHAPE = {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "ffn_hidden_size": 14336, "vocab_size": 128256}
HUGE = {"num_layers": 10_000, "hidden_size": 10**6, "num_heads": 1000, "ffn_hidden_size": 10**7, "vocab_size": 10**8}
TINY = {"num_layers": 1, "hidden_size": 1, "num_heads": 1, "ffn_hidden_size": 1, "vocab_size": 1}
PINNED = {"framework": "fsdp2", "strategy": "fsdp_full"}


def asked(model: dict[str, Any], training: dict[str, Any], **pool: Any) -> dict[str, Any]:
    return {
        "model": model,
        "training": {"seq_len": 2**24} | training,
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8} | pool]},
        "constraints": PINNED,
    }


LORA = {"kind": "lora", "rank": 65536}


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (asked({"params": 1e14}, {"micro_batch": 10**6}), ["training", "seq_len"]),
        (asked({"params": 1e14}, {"seq_len": 128, "grad_accum": 10**6}), ["training", "grad_accum"]),
        (asked({"params": 1e14}, {"seq_len": 8192, "global_batch": 10**7}), ["training", "global_batch"]),
        (asked({"shape": SHAPE}, {"attention": "eager", "micro_batch": 1000}), ["training", "seq_len"]),
        (asked({"shape": TINY}, {"micro_batch": 10**6, "adapter": LORA}), ["training", "seq_len"]),
        (asked({"shape": HUGE | {"num_experts": 10**5, "experts_per_token": 1}}, {"seq_len": 1}), ["model"]),
        (asked({"params": 1e9}, {"seq_len": 128}, gpus_per_node=1024, nodes=100_000), ["cluster", "pools", 0, "nodes"]),
        (asked({"params": 1e9}, {"seq_len": 128}, inter_node_gbit_per_s=5e-324), ["cluster", "pools", 0, "inter_node_gbit_per_s"]),
        (asked({"params": 1e9}, {"seq_len": 128}, gpu_memory_gib=5e-324), ["cluster", "pools", 0, "gpu_memory_gib"]),
    ],
    ids=["micro-batch", "accumulation", "global-batch", "scores", "adapter", "parameters", "gpus", "slow-network", "no-memory"],
)
def test_what_is_too_large_is_refused_at_its_field(client: TestClient, body: dict[str, Any], loc: list[str | int]) -> None:
    """These were answered with 500, after a minute, or with figures of the wrong sign."""
    answer = client.post("/plan", json=body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["loc"] == loc
    assert error["hint"] or "greater than or equal" in error["msg"]


@pytest.mark.parametrize(
    "body",
    [
        asked({"preset": "llama-3.1-70b"}, {"micro_batch": 1}),
        asked({"preset": "llama-3.1-8b"}, {"seq_len": 8192, "global_batch": 16384}, nodes=1024),
        asked({"params": 1e14}, {"seq_len": 4096, "micro_batch": 1}, nodes=100_000),
    ],
    ids=["longest-sequence", "large-batch", "largest-model"],
)
def test_large_is_not_too_large(client: TestClient, body: dict[str, Any]) -> None:
    """The longest sequence, a large batch and the largest model are planned."""
    assert client.post("/plan", json=body).status_code == 200
