"""accelerate's own launcher reads every accelerate.yaml and builds the plugin the plan meant.

Fields are compared, not exit codes: accelerate drops what it does not know without a word.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.emit.jobs import make_job
from tests.verify.harness import probe, write_files

pytestmark = pytest.mark.files("accelerate.yaml", "accelerate")

VARIANTS: dict[str, dict[str, Any]] = {
    "fsdp2": {"framework": "fsdp2"},
    "grad_op": {"framework": "fsdp2", "strategy": "fsdp_grad_op", "precision": "fp32"},
    "hsdp": {"framework": "fsdp2", "strategy": "hsdp", "dp_replicate": 2, "dp_shard": 4},
    "recompute": {"framework": "fsdp2", "activation_checkpointing": "full", "param_dtype": "bf16"},
    "offload": {"framework": "fsdp2", "offload_parameters": "cpu", "offload_optimizer": "cpu"},
    "ddp": {"framework": "ddp"},
    "zero2": {"strategy": "zero2"},
    "zero3": {"strategy": "zero3"},
    "one_node": {"framework": "fsdp2", "nodes": 1, "world_size": 4, "dp_shard": 4},
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a rank sees of each variant."""
    root = tmp_path_factory.mktemp("accelerate")
    for name, changes in VARIANTS.items():
        write_files(make_job(**changes), root / name)
    answer: dict[str, dict[str, Any]] = probe("accelerate", root, *(str(root / n / "accelerate.yaml") for n in VARIANTS))
    assert set(answer) == set(VARIANTS)
    return answer


def test_every_file_starts_the_planned_processes(launched: dict[str, dict[str, Any]]) -> None:
    """Eight on two nodes, four on one."""
    assert {name: seen["processes"] for name, seen in launched.items()} == {
        name: make_job(**changes).settings.world_size for name, changes in VARIANTS.items()
    }


def test_fsdp2_is_version_2_with_the_planned_reshard(launched: dict[str, dict[str, Any]]) -> None:
    """Version, reshard, wrap class and state dict reach the plugin."""
    fields = ("version", "reshard", "wrap", "state_dict", "checkpointing", "mixed_precision")
    seen = {name: tuple(launched[name][field] for field in fields) for name in ("fsdp2", "grad_op", "recompute")}
    wrap = ["LlamaDecoderLayer"]
    assert seen == {
        "fsdp2": (2, True, wrap, "SHARDED_STATE_DICT", False, "bf16"),
        "grad_op": (2, False, wrap, "SHARDED_STATE_DICT", False, "no"),
        "recompute": (2, True, wrap, "SHARDED_STATE_DICT", True, "no"),
    }


def test_offload_and_mesh_arrive(launched: dict[str, dict[str, Any]]) -> None:
    """CPU offload becomes a policy, and hybrid sharding a mesh."""
    assert launched["offload"]["offload"] == "CPUOffloadPolicy"
    assert launched["fsdp2"]["offload"] != "CPUOffloadPolicy"
    assert launched["hsdp"]["mesh"] == [2, 4, 1, 1]
    assert "mesh" not in launched["fsdp2"]


def test_deepspeed_reads_the_file_beside_it(launched: dict[str, dict[str, Any]]) -> None:
    """Stage and clipping come from ds_config.json."""
    assert (launched["zero2"]["stage"], launched["zero3"]["stage"]) == (2, 3)
    assert launched["zero3"]["clipping"] == 1.0
    assert launched["ddp"]["mixed_precision"] == "bf16"
