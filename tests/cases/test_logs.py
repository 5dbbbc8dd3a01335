"""Logs of public cases: the tensor that failed is named with its arithmetic, and the device, the moment and a change of the report.

A case counts as named when its tensor, device and moment are those of the report and, where sizes are known, the arithmetic gives the
request within 3 %.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.services.diagnose.answer import diagnose
from app.services.diagnose.asked import DiagnoseIn
from tests.cases.reading import partial_request_of

CASES = {case["id"]: case for case in json.loads((Path(__file__).resolve().parents[1] / "data" / "cases.json").read_text())}


class Said(NamedTuple):
    """What the report says: words of the tensor, device, moment, words of one remedy or note."""

    tensor: str
    device: str
    moment: str | None
    helps: str


LOGS = {
    "a-baichuan2-13b-4xa800-z2-log": Said("Adam moment", "gpu", "step", "ZeRO-3"),
    "a-llada8b-2xa100-40-z2off-log": Said("fp32 optimizer partition", "gpu", "initialisation", "offload is not in effect"),
    "a-qwen2vl-2x8xa100-log": Said("exp_avg_sq", "gpu", "step", "expandable segments"),
    "a-galactica30b-attn-log": Said("attention scores", "gpu", "forward", "flash or SDPA attention"),
    "a-qwen3vl-30ba3b-32xh100-z2": Said("Adam moment", "gpu", "step", "ZeRO-3"),
    "b-verl-250gb-host": Said("one task runner", "host", None, "data path"),
}
"""Logs whose report says which tensor, or which process, it was."""

SHORT_BY_94_MIB = "a-94mib-short-log"

KILLS = {
    "b-qwen25-32b-1xh100-744gb": Said("optimizer states on the host", "host", "step", "parameters on the GPU"),
    "b-qwen2-72b-8xa100-800gb-pin": Said("optimizer states on the host with pinned", "host", "save", "pin_memory false"),
    "b-llama65b-load-8x": Said("16 bits in every rank", "host", "load", "zero.Init"),
    "b-13b-256gb-8xa800-z2": Said("fp32 copy", "host", "initialisation", "ZeRO-3"),
    "b-openrlhf-70b-adam-offload": Said("optimizer states on the host", "host", "step", "2 nodes"),
    "b-30b-vlm-lora-2gpu-482": Said("in every rank, while it is loaded", "host", "load", "zero.Init"),
    "b-30b-vlm-lora-8gpu-1928": Said("in every rank, while it is loaded", "host", "load", "zero.Init"),
    "b-fsdp2-35b-16ranks": Said("fp32 in every rank", "host", "load", "ACCELERATE_USE_FSDP"),
    "b-falcon40b-fsdp-load": Said("fp32 in every rank", "host", "load", "load on rank 0"),
    "b-gpt2-775m-colab": Said("optimizer states on the host", "host", "step", "ZeRO-3"),
}
"""Nodes that ran out of memory; their reports tell the exit and the phase in a few words, which are taken for the log."""


@cache
def answered(name: str) -> dict[str, Any]:
    case = CASES[name]
    text = case["input"].get("log") or case["observed"]["result"]
    return diagnose(DiagnoseIn.model_validate({"text": text, "request": partial_request_of(case)})).document()


@pytest.mark.parametrize(("name", "said"), [*LOGS.items(), *KILLS.items()], ids=[*LOGS, *KILLS])
def test_the_tensor_is_named(name: str, said: Said) -> None:
    """With device, moment, and what the report says helps; the arithmetic of a known model gives the size that was asked for."""
    found = answered(name)
    assert (found["device"], found["moment"]) == (said.device, said.moment)
    assert said.tensor in found["tensor"]["name"]
    words = json.dumps([found["remedies"], found["notes"]])
    assert said.helps in words
    requested, tensor = found["read"].get("requested_bytes"), found["tensor"]
    if requested and " = " in tensor["arithmetic"] and found["expected"]:
        assert tensor["bytes"] == pytest.approx(requested, rel=0.03)


def test_a_narrow_shortage_is_no_fit() -> None:
    """94 MiB of 63 GiB: said in figures, with real headroom asked for, and changes that free more than is missing."""
    found = answered(SHORT_BY_94_MIB)
    assert (found["device"], found["moment"]) == ("gpu", "backward")
    assert "93.5 MiB" in found["cause"]
    assert any("real headroom" in note for note in found["notes"])
    changes = {key for remedy in found["remedies"] for key in remedy["settings"]}
    assert {"training.seq_len", "zero_optimization.overlap_comm", "constraints.offload_optimizer"} <= changes
    assert all(remedy["frees_bytes"] > 98_000_000 for remedy in found["remedies"] if remedy["enough"])


def test_every_log_is_asked() -> None:
    """Cases with a log, or of a node that was killed, are in the lists above; one is a question about a file."""
    logs = {name for name, case in CASES.items() if "log" in case["input"] or case["expected"].get("device") == "cpu"}
    assert logs == {*LOGS, *KILLS, SHORT_BY_94_MIB, "b-nvme-buffers-pinned"}
