"""Slow runs of public reports: the link that binds, and the change that the report recommends, with its predicted gain."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.diagnose.answer import diagnose
from app.services.diagnose.asked import DiagnoseIn

TITAN = {"name": "TITAN RTX", "memory_gib": 23.6, "bf16_tflops": 65, "hbm_gb_per_s": 672, "link_gb_per_s": 12, "pcie_gb_per_s": 12}
LORA = {"adapter": {"kind": "lora"}}


def asked(
    model: dict[str, Any], gpu: Any, size: tuple[int, int], strategy: str, training: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    pool = {"gpu": gpu, "gpus_per_node": size[0], "nodes": size[1]} | more.pop("pool", {})
    return {"model": model, "training": training or {}, "cluster": {"pools": [pool]}, "constraints": {"strategy": strategy} | more}


CASES: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "e-lora-z3-10gbe": (
        "90 s/it on two nodes, 4 s on one",
        asked({"preset": "llama-3-8b"}, "a100-sxm-80gb", (8, 2), "zero3", LORA, pool={"inter_node_gbit_per_s": 10}),
        "network between nodes", ("DDP", "ZeRO-1", "ZeRO-2"),
    ),
    "e-lora-14b-2x2a10": (
        "40 s/it, ten times slower than one node",
        asked({"params": 14e9}, "a10", (2, 2), "zero3", LORA | {"micro_batch": 1, "grad_accum": 2}),
        "network between nodes", ("one node",),
    ),
    "e-qwen2-15b-2node-a10": (
        "step time 8.68 s on two nodes, 2.46 s on one", asked({"preset": "qwen2-1.5b"}, "a10", (2, 2), "zero3"),
        "network between nodes", ("ZeRO-1 with 8 micro-steps accumulated", "one node"),
    ),
    "e-z3-bert5b-allgather": (
        "step time 1.5 s", asked({"params": 5e9}, "a100-sxm-40gb", (8, 1), "zero3", {"seq_len": 128, "micro_batch": 1}),
        "parameter all-gather over 8 ranks", ("micro-batch 8", "ZeRO-2"),
    ),
    "e-falcon-offload-both": (
        "step time 13.7 s",
        asked({"preset": "falcon-7b"}, "a100-sxm-40gb", (8, 1), "zero3", {"seq_len": 4096}, offload_optimizer="cpu",
              offload_parameters="cpu"),
        "link between host and GPU", ("no offload", "FSDP full shard"),
    ),
    "e-falcon-offload-z2": (
        "step time 9.6 s", asked({"preset": "falcon-7b"}, "a100-sxm-40gb", (8, 1), "zero2", {"seq_len": 4096}, offload_optimizer="cpu"),
        "link between host and GPU", ("no offload", "FSDP full shard"),
    ),
    "e-kohya-pcie-h100": (
        "2.07 s/it", asked({"params": 2.57e9}, "h100-pcie-80gb", (2, 1), "ddp", {"seq_len": 4096}, pool={"intra_node": "pcie5"}),
        "pcie5 inside the node", ("4 micro-steps accumulated",),
    ),
    "e-72b-multinode": (
        "step time 100 s", asked({"params": 72.7e9}, "a100-sxm-40gb", (8, 4), "zero3"),
        "network between nodes", ("hpZ over the 8 GPUs of a node, optimizer on the host",),
    ),
    "e-reshard-3b": (
        "step time 1.08 s", asked({"preset": "qwen2.5-3b"}, "a100-sxm-80gb", (2, 1), "fsdp_full"),
        "all-gather over 2 ranks", ("FSDP without resharding",),
    ),
    "e-belle-stage-speed": (
        "2.37 batch/s", asked({"params": 1.07e9}, TITAN, (2, 1), "zero3", {"seq_len": 512, "micro_batch": 1}),
        "2 ranks", ("ZeRO-1",),
    ),
    "e-autoep-35b": (
        "27941 tok/s", asked({"preset": "qwen3-30b-a3b"}, "h100-sxm-80gb", (8, 2), "zero3", {"seq_len": 1024, "micro_batch": 1}),
        "computing", ("experts spread over 8 ranks",),
    ),
}  # fmt: skip


def answer(text: str, request: dict[str, Any] | None, **measured: Any) -> dict[str, Any]:
    return diagnose(DiagnoseIn.model_validate({"text": text, "request": request, "measured": measured})).document()


@pytest.mark.parametrize("name", CASES)
def test_what_binds_and_what_is_faster(name: str) -> None:
    """Expected time beside the reported one, the largest wait with its link, and the recommended change among those that are faster."""
    text, request, link, changes = CASES[name]
    found = answer(text, request)
    slow = found["slowness"]
    assert found["device"] == "none"
    assert link in slow["binds"]
    assert slow["reported_s"] > 0
    faster = {remedy["label"]: remedy for remedy in found["remedies"]}
    for change in changes:
        assert change in faster
        assert faster[change]["step_s_change"] < 0
        assert "times as fast" in faster[change]["why"]


def test_the_network_is_worked_out_where_nobody_said_it() -> None:
    """The reported time gives the rate; where the rate was given, it is only said what the time would speak of."""
    text, request, _, _ = CASES["e-qwen2-15b-2node-a10"]
    found = answer(text, request)
    assert found["slowness"]["expected_s"] < 2 < 8.68
    assert any("Gbit/s" in note and "NCCL_DEBUG=INFO" in note for note in found["notes"])
    assert any("inter_node_gbit_per_s" in line for line in found["missing"])
    known = answer(*CASES["e-lora-z3-10gbe"][:2])
    assert not any("inter_node_gbit_per_s" in line for line in known["missing"])


def test_what_is_not_faster_or_does_not_fit_is_said() -> None:
    """With its time or its memory."""
    found = answer(*CASES["e-72b-multinode"][:2])
    assert any(line.startswith("DDP: it does not fit") for line in found["would_not_help"])


def test_a_rate_of_tokens_is_a_step() -> None:
    """Of the whole job, or of one GPU where the log says so."""
    request = asked({"preset": "llama-3.1-8b"}, "h100-sxm-80gb", (8, 1), "zero2", {"seq_len": 4096, "micro_batch": 2, "grad_accum": 1})
    whole, one = answer("80,000 tokens/s", request), answer("10,000 tokens/s/GPU", request)
    assert whole["slowness"]["reported_s"] == pytest.approx(one["slowness"]["reported_s"])
    assert whole["slowness"]["reported_s"] == pytest.approx(8 * 2 * 4096 / 80_000)


def test_a_time_alone_asks_for_the_model() -> None:
    """Whether it is slow follows from what ran."""
    found = answer("", None, step_s=3.0)
    assert found["cause"].startswith("A step takes 3 s")
    assert any("request.model" in line for line in found["missing"])
