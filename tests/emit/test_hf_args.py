"""training_args.py is clean Python, says what the plan says, and agrees with the other dialects."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.domain.errors import ConflictError
from app.emit import trainer_files
from app.emit.accelerate import accelerate_config
from app.emit.deepspeed import deepspeed_config
from app.emit.hf_args import training_arguments
from app.emit.job import EmitJob
from tests.emit.jobs import make_job
from tests.emit.lint import autos
from tests.emit.test_files import HOSTILE, poisoned, shape_of
from tests.emit.test_scripts import RULES, run_ruff
from tests.emit.variants import FRAMEWORKS, all_jobs

SEQUENCE: dict[str, Any] = {"strategy": "zero3", "sequence_parallel": 4, "dp_shard": 2, "seq_len": 131072}
JOBS = all_jobs() | {
    "deepspeed sequence parallel": make_job(**SEQUENCE),
    "fsdp2 context parallel": make_job(framework="fsdp2", sequence_parallel=2, dp_shard=4),
}


def arguments(job: EmitJob) -> dict[str, Any]:
    """The dictionary of the file; code that is no literal as its source."""
    tree = ast.parse(training_arguments(job).text)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    plan = next(node.value for node in function.body if isinstance(node, ast.AnnAssign))
    assert isinstance(plan, ast.Dict)
    pairs = [(ast.literal_eval(key), value) for key, value in zip(plan.keys, plan.values, strict=True) if key]
    return {key: ast.unparse(value) if isinstance(value, ast.Call) else ast.literal_eval(value) for key, value in pairs}


def notes(job: EmitJob) -> str:
    """What the file says it cannot say."""
    return training_arguments(job).text.partition("What they do not say:")[2].partition('"""')[0]


def test_every_variant_is_clean(tmp_path: Path) -> None:
    """Ruff finds nothing to say and nothing to format."""
    for name, job in JOBS.items():
        path = tmp_path / name.replace(" ", "-") / "training_args.py"
        path.parent.mkdir()
        path.write_text(training_arguments(job).text, encoding="utf-8")
    for command in (("check", "--select", RULES, "--output-format", "concise"), ("format", "--check", "--diff")):
        result = run_ruff(*command, folder=tmp_path)
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batch_and_clipping_are_the_plans(framework: str) -> None:
    """Whatever the framework."""
    values = arguments(make_job(framework=framework, micro_batch=3, grad_accum=5, gradient_clipping=0.5))
    assert values["per_device_train_batch_size"] == 3
    assert values["gradient_accumulation_steps"] == 5
    assert values["max_grad_norm"] == 0.5


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon", "sgd_momentum", "sgd", "adafactor"])
def test_every_auto_of_the_deepspeed_file_has_an_argument(optimizer: str) -> None:
    """What ds_config.json leaves open is what the arguments say, and they say it with the plain file's values."""
    job = make_job(strategy="zero2", optimizer=optimizer)
    values, plain = arguments(job), json.loads(deepspeed_config(job).text)
    filled = {
        "train_batch_size": None, "train_micro_batch_size_per_gpu": values["per_device_train_batch_size"],
        "gradient_accumulation_steps": values["gradient_accumulation_steps"], "gradient_clipping": values["max_grad_norm"],
        "bf16.enabled": values["bf16"], "optimizer.params.lr": values["learning_rate"],
        "optimizer.params.betas": [values["adam_beta1"], values["adam_beta2"]], "optimizer.params.eps": values["adam_epsilon"],
        "optimizer.params.weight_decay": values["weight_decay"],
    }  # fmt: skip
    open_ = autos(json.loads(deepspeed_config(job, dialect="hf_auto").text))
    assert open_ <= set(filled)
    for path in open_ - {"train_batch_size"}:
        said: Any = plain
        for key in path.split("."):
            said = said[key]
        assert said == filled[path], path
    assert ("optim" in values) is (optimizer == "adafactor")
    assert values["deepspeed"] == "ds_config.json"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "fsdp_grad_op", "activation_checkpointing": "full"},
        {"offload_parameters": "cpu", "offload_optimizer": "cpu"},
        {"param_dtype": "bf16", "reduce_dtype": "bf16"},
        {"precision": "fp32"},
        {"strategy": "hsdp", "dp_replicate": 2, "dp_shard": 4},
    ],
)
def test_fsdp2_says_the_same_as_accelerate(changes: dict[str, Any]) -> None:
    """Key by key, where the two have other names for one thing; offload_params would be dropped in silence here."""
    job = make_job(framework="fsdp2", **changes)
    values, config = arguments(job), yaml.safe_load(accelerate_config(job).text)
    block, other = values["fsdp_config"], config["fsdp_config"]
    assert values["fsdp"] is True
    same = (
        "version",
        "reshard_after_forward",
        "auto_wrap_policy",
        "activation_checkpointing",
        "cpu_ram_efficient_loading",
        "state_dict_type",
    )
    assert {key: block[key] for key in same} == {key: other[f"fsdp_{key}"] for key in same}
    assert block["cpu_offload"] == other["fsdp_offload_params"]
    assert "offload_params" not in block
    assert ",".join(block["transformer_layer_cls_to_wrap"]) == other["fsdp_transformer_layer_cls_to_wrap"]
    assert values.get("bf16", False) is (config["mixed_precision"] == "bf16")
    assert "activation_checkpointing" not in values
    mesh = config.get("parallelism_config", {})
    assert ("parallelism_config" in values) is bool(mesh)
    for key, size in mesh.items():
        assert f"{key.removeprefix('parallelism_config_')}={size}" in values["parallelism_config"]


def test_accumulation_reduces_every_micro_step_under_fsdp2() -> None:
    """Without it every GPU holds whole gradients; with one micro-step there is nothing to hold."""
    assert arguments(make_job(framework="fsdp2"))["accelerator_config"] == {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert "accelerator_config" not in arguments(make_job(framework="fsdp2", grad_accum=1))
    assert "accelerator_config" not in arguments(make_job(framework="ddp"))


def test_sequence_parallelism_is_really_switched_on() -> None:
    """By the helper that replaces attention and cuts the batches; sizes in ds_config.json alone do neither."""
    mesh = arguments(make_job(**SEQUENCE))["parallelism_config"]
    for part in ("dp_shard_size=2", "sp_size=4", "sp_backend='deepspeed'", "sp_seq_length=131072", "flash_attention_2"):
        assert part in mesh
    assert "parallelism_config" not in arguments(make_job(strategy="zero3"))


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"framework": "ddp", "optimizer": "muon"}, "muon has no name"),
        ({"framework": "fsdp2", "optimizer": "lion"}, "lion has no name"),
        ({"framework": "fsdp2", "activation_checkpointing": "selective"}, "whole layers"),
        ({"framework": "fsdp2", "optimizer_in_backward": True, "grad_accum": 1}, "optimizer_in_backward"),
        ({"fused_loss": True}, "liger-kernel"),
        ({"precision": "fp8"}, "torchao"),
        ({"framework": "fsdp2", "param_dtype": "bf16"}, "load the model in bf16"),
        ({"framework": "fsdp2", "tensor_parallel": 2, "dp_shard": 4}, "tp_plan"),
        ({"job": {"adapter": {"kind": "lora", "rank": 8}}}, "autocast_adapter_dtype=False"),
        ({"framework": "fsdp2", "job": {"adapter": {"kind": "lora", "rank": 8}}}, "autocast_adapter_dtype=True"),
    ],
)
def test_what_cannot_be_said_is_said(changes: dict[str, Any], note: str) -> None:
    """As a note in the file, and not in the file of a plan that does not need it."""
    assert note in notes(make_job(**changes))
    assert note not in notes(make_job(framework=changes.get("framework", "deepspeed")))


def test_pipelines_and_experts_are_refused() -> None:
    """The Trainer has no argument for them; the ds_config.json remains."""
    for axis in ("pipeline_parallel", "expert_parallel"):
        job = make_job(strategy="zero1", **{axis: 2})
        with pytest.raises(ConflictError, match=axis):
            training_arguments(job)
        assert [file.filename for file in trainer_files(job)] == ["ds_config.json"]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_hostile_name_changes_no_code(framework: str, hostile: str) -> None:
    """The syntax tree stays, whatever the model and its classes are called."""
    job = make_job(framework=framework)
    tame, wild = (ast.parse(training_arguments(poisoned(job, name)).text) for name in ("tame", hostile))
    assert shape_of(tame) == shape_of(wild)
