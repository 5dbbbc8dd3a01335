"""accelerate.yaml uses only keys that count, and each in the one form that is understood."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from app.emit.accelerate import accelerate_config
from tests.emit.jobs import make_job


def emitted(**changes: Any) -> dict[str, Any]:
    """The file, read back."""
    config = yaml.safe_load(accelerate_config(make_job(**changes)).text)
    assert isinstance(config, dict)
    return config


def test_deepspeed_is_configured_in_one_place() -> None:
    """Beside deepspeed_config_file, accelerate refuses mixed_precision and zero_stage."""
    config = emitted(strategy="zero3")
    assert config["deepspeed_config"] == {
        "deepspeed_config_file": "ds_config.json",
        "zero3_init_flag": True,
        "deepspeed_multinode_launcher": "standard",
    }
    assert "mixed_precision" not in config
    assert emitted(strategy="zero2")["deepspeed_config"]["zero3_init_flag"] is False


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({}, "fsdp_reshard_after_forward", True),
        ({"strategy": "fsdp_grad_op"}, "fsdp_reshard_after_forward", False),
        ({}, "fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer"),
        ({}, "fsdp_state_dict_type", "SHARDED_STATE_DICT"),
        ({"offload_parameters": "cpu"}, "fsdp_offload_params", True),
        ({"activation_checkpointing": "full"}, "fsdp_activation_checkpointing", True),
        (
            {"activation_checkpointing": "full", "activation_offload": True},
            "fsdp_activation_checkpointing_offload",
            True,
        ),
    ],
)
def test_fsdp2_keys(changes: dict[str, Any], key: str, value: Any) -> None:
    """Version 2 is named, reshard is a boolean, and every key has its prefix."""
    block = emitted(framework="fsdp2", **changes)["fsdp_config"]
    assert block["fsdp_version"] == 2
    assert block[key] is value or block[key] == value
    assert all(name.startswith("fsdp_") for name in block)


def test_hybrid_sharding_goes_through_prefixed_keys() -> None:
    """Unprefixed sizes would be dropped in silence; their product is the number of processes."""
    config = emitted(framework="fsdp2", strategy="hsdp", dp_replicate=2, dp_shard=4)
    sizes = config["parallelism_config"]
    assert sizes["parallelism_config_dp_replicate_size"] == 2
    assert sizes["parallelism_config_dp_shard_size"] == 4
    assert 2 * 4 * sizes["parallelism_config_tp_size"] * sizes["parallelism_config_cp_size"] == config["num_processes"]
    assert "parallelism_config" not in emitted(framework="fsdp2")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"framework": "fsdp2"}, "bf16"),
        ({"framework": "fsdp2", "param_dtype": "bf16"}, "no"),
        ({"framework": "fsdp2", "precision": "fp32"}, "no"),
        ({"framework": "ddp", "precision": "fp16"}, "fp16"),
        ({"framework": "ddp", "precision": "fp8"}, "bf16"),
    ],
)
def test_mixed_precision_follows_how_weights_are_stored(changes: dict[str, Any], expected: str) -> None:
    """With it, accelerate stores trained weights in fp32; a model kept in bf16 must go without."""
    assert emitted(**changes)["mixed_precision"] == expected


def test_one_process_is_not_multi_gpu() -> None:
    """The launcher refuses MULTI_GPU with fewer than two processes."""
    assert emitted(framework="ddp", world_size=1, dp_shard=1, nodes=1)["distributed_type"] == "NO"
    assert emitted(framework="ddp")["distributed_type"] == "MULTI_GPU"


def notes(**changes: Any) -> str:
    """The comments of the file."""
    return "\n".join(line for line in accelerate_config(make_job(**changes)).text.splitlines() if line.startswith("#"))


def test_deepspeed_files_say_who_builds_the_optimizer() -> None:
    """accelerate refuses a real optimizer beside one in ds_config.json, and a dummy without one there."""
    assert "DummyOptim" in notes(strategy="zero2")
    assert "DummyOptim" not in notes(strategy="zero2", optimizer="adafactor")
    assert "DummyOptim" not in notes(framework="fsdp2")


def test_sequence_parallelism_has_the_block_that_switches_it_on() -> None:
    """Sizes in ds_config.json alone split nothing; without sequences there is no such block."""
    config = emitted(strategy="zero3", sequence_parallel=4, dp_shard=2, seq_len=131072, attention="sdpa")
    prefix = "parallelism_config_"
    block = {key.removeprefix(prefix): value for key, value in config["parallelism_config"].items()}
    assert all(key.startswith(prefix) for key in config["parallelism_config"])
    assert block["sp_size"] * block["dp_shard_size"] == config["num_processes"]
    assert (block["sp_backend"], block["sp_seq_length"], block["sp_attn_implementation"]) == ("deepspeed", 131072, "sdpa")
    assert "weigh it by tokens" in notes(strategy="zero3", sequence_parallel=4, dp_shard=2)
    assert "parallelism_config" not in emitted(strategy="zero3")
    assert "autotp_size" in notes(strategy="zero2", tensor_parallel=2, dp_shard=4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "fsdp_sharding_strategy FULL_SHARD"),
        ({"strategy": "fsdp_grad_op"}, "fsdp_sharding_strategy SHARD_GRAD_OP"),
        ({"strategy": "hsdp", "dp_replicate": 2, "dp_shard": 4}, "fsdp_sharding_strategy HYBRID_SHARD"),
        ({"strategy": "hsdp", "dp_replicate": 4, "dp_shard": 2}, "a copy a node, of 4 ranks where this file has 2"),
        ({"activation_checkpointing": "full", "activation_offload": True}, "FSDP1 has no fsdp_activation_checkpointing_offload"),
        ({"tensor_parallel": 2, "dp_shard": 4}, "FSDP1 has no counterpart"),
    ],
)
def test_fsdp2_files_say_the_same_in_fsdp1s_names(changes: dict[str, Any], said: str) -> None:
    """Or that there is no such thing."""
    assert said in notes(framework="fsdp2", **changes)
    assert "FSDP1" not in notes(framework="ddp")
