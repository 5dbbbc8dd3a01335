"""DeepSpeed's own parser accepts every ds_config.json and understands what the plan meant."""

from __future__ import annotations

from typing import Any

import pytest

from app.emit.deepspeed import deepspeed_config
from tests.emit.jobs import make_job, tiny_llama
from tests.verify.harness import probe

pytestmark = pytest.mark.files("ds_config.json", "deepspeed")

VARIANTS: dict[str, dict[str, Any]] = {
    "stage0": {"strategy": "ddp"},
    "stage1": {"strategy": "zero1"},
    "stage2": {"strategy": "zero2", "overlap_comm": False},
    "stage3": {"strategy": "zero3"},
    "fp32": {"strategy": "zero2", "precision": "fp32"},
    "fp16": {"strategy": "zero3", "precision": "fp16"},
    "pure": {"strategy": "zero2", "master_weights": False},
    "accumulate1": {"strategy": "zero1", "grad_dtype": "fp32"},
    "accumulate2": {"strategy": "zero2", "grad_dtype": "fp32"},
    "cpu1": {"strategy": "zero1", "offload_optimizer": "cpu"},
    "cpu3": {"strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "cpu"},
    "partly": {"strategy": "zero3", "offload_optimizer": "cpu", "offload_optimizer_ratio": 0.75},
    "nvme": {"strategy": "zero3", "offload_optimizer": "nvme", "offload_parameters": "nvme"},
    "hpz": {"strategy": "zero3", "hpz_group_size": 4},
    "pure_fp16": {"strategy": "zero2", "precision": "fp16", "master_weights": False, "offload_optimizer": "cpu"},
    "reduce": {"strategy": "zero2", "reduce_dtype": "fp32"},
    "tensor": {"strategy": "zero2", "tensor_parallel": 2, "dp_shard": 4},
    "tensor, stage 3": {"strategy": "zero3", "tensor_parallel": 2, "dp_shard": 4},
    "sequence": {"strategy": "zero3", "sequence_parallel": 2, "dp_shard": 4, "global_batch": 16},
    **{
        f"optimizer_{name}": {"strategy": "zero3", "optimizer": name, "offload_optimizer": "cpu"}
        for name in ("adamw_8bit", "adafactor", "lion", "muon", "sgd_momentum", "sgd")
    },
}


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What DeepSpeed makes of each variant on eight ranks."""
    root = tmp_path_factory.mktemp("configs")
    paths = []
    jobs = {name: make_job(**changes) for name, changes in VARIANTS.items()}
    jobs["moe"] = make_job(strategy="zero3", model=tiny_llama(moe=True))
    for name, job in jobs.items():
        path = root / name / "ds_config.json"
        path.parent.mkdir()
        path.write_text(deepspeed_config(job).text, encoding="utf-8")
        paths.append(str(path))
    answer: dict[str, dict[str, Any]] = probe("ds_config", root, "8", *paths)
    assert set(answer) == set(jobs)
    return answer


@pytest.mark.parametrize("name", VARIANTS)
def test_the_plan_is_what_deepspeed_understands(resolved: dict[str, dict[str, Any]], name: str) -> None:
    """Stage, batch, clipping, precision and offload devices come out as they went in."""
    job, seen = make_job(**VARIANTS[name]), resolved[name]
    s = job.settings
    assert seen["stage"] == {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[s.strategy]
    assert seen["batch"][1:] == [s.micro_batch, s.grad_accum]
    assert seen["clipping"] == s.gradient_clipping
    assert (seen["bf16"], seen["fp16"]) == (s.precision == "bf16", s.precision == "fp16")
    assert (seen["offload_optimizer"], seen["offload_param"]) == (s.offload_optimizer, s.offload_parameters)
    assert seen["ratio"] == s.offload_optimizer_ratio
    assert seen["hpz"] == s.hpz_group_size


def test_sizes_and_switches_arrive(resolved: dict[str, dict[str, Any]]) -> None:
    """Numbers in elements, booleans as booleans."""
    stage3 = resolved["stage3"]
    assert (stage3["bucket"], stage3["prefetch"], stage3["sub_group"]) == (50_000_000, 50_000_000, 100_000_000)
    assert stage3["persistence"] == 100_000
    assert (resolved["stage2"]["overlap"], stage3["overlap"]) == (False, True)
    assert resolved["stage2"]["batch"] == [32, 2, 2]
    assert resolved["pure"]["pure"] is True
    assert resolved["accumulate2"]["grad_accum_dtype"] == "fp32"
    assert resolved["nvme"]["aio"] == 16
    assert "MixtralSparseMoeBlock" in resolved["moe"]["leaf"]


def test_optimizers_are_those_of_the_plan(resolved: dict[str, dict[str, Any]]) -> None:
    """DeepSpeed's by name, the script's own where it has no name."""
    names = {name: resolved[f"optimizer_{name}"]["optimizer"] for name in ("lion", "muon", "sgd", "adafactor")}
    assert {key: value.lower() if value else None for key, value in names.items()} == {
        "lion": "lion",
        "muon": "muon",
        "sgd": "sgd",
        "adafactor": None,
    }
