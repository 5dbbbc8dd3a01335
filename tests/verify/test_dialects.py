"""Names and arguments as the libraries themselves take them: FSDP1 beside FSDP2, sequences under DeepSpeed, TrainingArguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.domain.parallel.fsdp_names import SHARDINGS, to_fsdp1, to_fsdp2
from app.emit import files_for, trainer_files
from tests.emit.jobs import make_job
from tests.verify.harness import probe

WRAP = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
OLD = {
    s.fsdp1: {"fsdp_version": 1, "fsdp_sharding_strategy": s.fsdp1, "fsdp_state_dict_type": "FULL_STATE_DICT", **WRAP} for s in SHARDINGS
}
NEW = {name: to_fsdp2(block) for name, block in OLD.items() if name != "NO_SHARD"}
UNTRANSLATED: dict[str, dict[str, Any]] = {
    "strategy": {"fsdp_version": 2, "fsdp_reshard_after_forward": "FULL_SHARD"},
    "state dict": {"fsdp_version": 2, "fsdp_state_dict_type": "LOCAL_STATE_DICT"},
}
TRAINED: dict[str, dict[str, Any]] = {
    "zero3": {"strategy": "zero3", "activation_checkpointing": "full"},
    "fsdp2": {"framework": "fsdp2"},
    "grad op": {"framework": "fsdp2", "strategy": "fsdp_grad_op", "activation_checkpointing": "full", "grad_accum": 1},
    "hsdp": {"framework": "fsdp2", "strategy": "hsdp", "dp_replicate": 2, "dp_shard": 4},
    "offload": {"framework": "fsdp2", "offload_parameters": "cpu", "offload_optimizer": "cpu"},
    "ddp": {"framework": "ddp", "optimizer": "sgd_momentum"},
    "sequence": {"strategy": "zero3", "sequence_parallel": 4, "dp_shard": 2},
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the libraries make of every file."""
    root, paths = tmp_path_factory.mktemp("dialects"), list[Path]()
    blocks = OLD | {f"{name} 2": new.config for name, new in NEW.items()} | UNTRANSLATED
    blocks |= {f"{name} 1": to_fsdp1(new.config, replicates=new.replicates).config for name, new in NEW.items()}
    for name, block in blocks.items():
        paths.append(root / name / "fsdp.yaml")
        paths[-1].parent.mkdir()
        paths[-1].write_text(yaml.safe_dump({"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": block}))
    for name, changes in TRAINED.items():
        paths.append(root / name / "training_args.py")
        paths[-1].parent.mkdir()
        for file in trainer_files(make_job(**changes)):
            (paths[-1].parent / file.filename).write_text(file.text, encoding="utf-8")
    (root / "split").mkdir()
    for file in files_for(make_job(strategy="zero3", sequence_parallel=4, dp_shard=2)):
        (root / "split" / file.filename).write_text(file.text, encoding="utf-8")
    answer: dict[str, dict[str, Any]] = probe("dialects", root, *map(str, paths), str(root / "split" / "accelerate.yaml"))
    assert set(answer) == {path.parent.name for path in paths} | {"split"}
    return answer


def test_fsdp1_strategies_are_fsdp1s(seen: dict[str, dict[str, Any]]) -> None:
    """The left column of the table is what version 1 takes."""
    assert {name: seen[name]["strategy"].removeprefix("_") for name in OLD} == {name: name for name in OLD}
    assert all(seen[name]["version"] == 1 for name in OLD)


def test_translated_blocks_build_fsdp2(seen: dict[str, dict[str, Any]]) -> None:
    """With the reshard choice of the table, and everything both sides have unchanged."""
    for strategy in (s for s in SHARDINGS if s.fsdp1 in NEW):
        found = seen[f"{strategy.fsdp1} 2"]
        assert (found["version"], found["reshard"]) == (2, strategy.reshard)
        assert (found["state_dict"], found["wrap"]) == ("FULL_STATE_DICT", ["LlamaDecoderLayer"])


def test_translating_back_builds_the_same_fsdp1(seen: dict[str, dict[str, Any]]) -> None:
    """The same strategy, with the original parameters in view."""
    for name in NEW:
        assert seen[f"{name} 1"]["strategy"] == seen[name]["strategy"]
        assert seen[f"{name} 1"]["orig"] is True


@pytest.mark.parametrize("name", UNTRANSLATED)
def test_fsdp1s_words_are_refused_by_fsdp2(seen: dict[str, dict[str, Any]], name: str) -> None:
    """So a translation is needed where the table has one."""
    assert "error" in seen[name]


def test_sequence_parallelism_reaches_every_rank(seen: dict[str, dict[str, Any]]) -> None:
    """accelerate builds the mesh from the file although its flag is for FSDP2 alone."""
    assert seen["split"] == {
        "on": "true", "size": 4, "backend": "deepspeed", "data": 2, "length": 64, "variable": False, "attention": "flash_attention_2",
    }  # fmt: skip


def test_arguments_are_taken_as_they_are_meant(seen: dict[str, dict[str, Any]]) -> None:
    """No key is dropped on the way to the plugin, and meshes arrive."""
    assert {name: seen[name]["mesh"] for name in TRAINED} == {
        "zero3": None, "fsdp2": None, "grad op": None, "hsdp": [2, 4, 1], "offload": None, "ddp": None, "sequence": [1, 2, 4],
    }  # fmt: skip
    reshard = {name: seen[name]["fsdp"].get("reshard_after_forward") for name in ("fsdp2", "grad op", "hsdp")}
    assert reshard == {"fsdp2": True, "grad op": False, "hsdp": True}
    assert seen["fsdp2"]["fsdp"]["state_dict_type"] == "SHARDED_STATE_DICT"
    assert seen["fsdp2"]["fsdp"]["transformer_cls_names_to_wrap"] == "LlamaDecoderLayer"
    assert (seen["fsdp2"]["sync"], seen["grad op"]["sync"]) == (True, None)
    assert seen["offload"]["fsdp"]["cpu_offload"] is True
    assert "cpu_offload" not in seen["fsdp2"]["fsdp"]
    assert seen["grad op"]["fsdp"]["activation_checkpointing"] is True
    assert (seen["grad op"]["checkpointing"], seen["zero3"]["checkpointing"]) == (False, True)
    assert seen["ddp"]["optim"] == "sgd"
