"""What acts, after defaults and ignored keys, is what a prediction is made for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from app.audit.subject import Subject
from app.audit.torch.effective import effective_fsdp
from tests.audit.torch_subjects import cluster, deepspeed, launch, mesh, subject, trainer, training

FULL: dict[str, Any] = {"framework": "fsdp", "strategy": "fsdp_full", "version": 2, "shards": 8, "wrap": "blocks"}
CASES: dict[str, tuple[Subject, dict[str, Any]]] = {
    "fsdp2": (
        subject("accelerate", launch(mixed_precision="bf16")),
        FULL | {"stored": "fp32", "compute": "bf16", "reduce": "bf16", "ram_efficient": True, "state_dict": "SHARDED_STATE_DICT"},
    ),
    "pure bf16": (
        subject("accelerate", launch(mixed_precision="no"), training=training()),
        FULL | {"stored": "bf16", "compute": "bf16"},
    ),
    "reshard": (
        subject("accelerate", launch({"fsdp_reshard_after_forward": False})),
        {"strategy": "fsdp_grad_op", "reshard_after_forward": False},
    ),
    "ignored strategy": (subject("accelerate", launch({"fsdp_sharding_strategy": "SHARD_GRAD_OP"})), FULL),
    "what accelerate config writes": (
        subject("accelerate", launch({"fsdp_version": 1, "fsdp_reshard_after_forward": "SHARD_GRAD_OP"})),
        FULL | {"version": 1, "reshard_after_forward": True, "state_dict": "FULL_STATE_DICT"},
    ),
    "fsdp1 by number": (subject("fsdp", {"fsdp_sharding_strategy": 2}), {"version": 1, "strategy": "fsdp_grad_op", "wrap": "whole"}),
    "fsdp1 hybrid": (
        subject("fsdp", {"fsdp_sharding_strategy": "HYBRID_SHARD"}, cluster=cluster(nodes=4)),
        {"strategy": "hsdp", "replicas": 4, "shards": 8},
    ),
    "no shard": (subject("fsdp", {"fsdp_sharding_strategy": "NO_SHARD"}, world_size=8), {"strategy": "ddp", "replicas": 8, "shards": 1}),
    "hsdp": (
        subject("accelerate", launch(**mesh(dp_replicate_size=2, dp_shard_size="4"))),
        {"strategy": "hsdp", "replicas": 2, "shards": 4},
    ),
    "unprefixed mesh": (
        subject("accelerate", launch(parallelism_config={"dp_replicate_size": 2, "dp_shard_size": 4})),
        FULL | {"replicas": 1},
    ),
    "context parallel": (
        subject("accelerate", launch(**mesh(dp_shard_size=4, cp_size=2))),
        FULL | {"context_parallel": 2},
    ),
    "offload": (
        subject("accelerate", launch({"fsdp_offload_params": "true", "fsdp_activation_checkpointing": True})),
        {"offload": True, "activation_checkpointing": True},
    ),
    "trainer": (
        subject("hf_trainer", trainer(bf16=True, gradient_accumulation_steps=4), cluster=cluster()),
        FULL | {"grad_accum": 4, "sync_each_batch": False, "ram_efficient": False, "state_dict": "FULL_STATE_DICT", "compute": "bf16"},
    ),
    "trainer by words": (
        subject("hf_trainer", {"fsdp": "shard_grad_op auto_wrap offload"}),
        {"strategy": "fsdp_grad_op", "version": 2, "offload": True, "wrap": "blocks"},
    ),
    "trainer's ignored offload": (subject("hf_trainer", trainer({"fsdp_offload_params": True})), {"offload": False}),
    "trainer syncs": (
        subject("hf_trainer", trainer(accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}})),
        {"sync_each_batch": True},
    ),
    "trainer without fsdp": (
        subject("hf_trainer", {"bf16": True, "gradient_checkpointing": True}, cluster=cluster()),
        {"framework": "ddp", "strategy": "ddp", "replicas": 8, "activation_checkpointing": True, "stored": "fp32"},
    ),
    "one process": (subject("accelerate", {"distributed_type": False, "num_processes": 8}), {"framework": "ddp", "replicas": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_acts(name: str) -> None:
    """The settings that are named."""
    given, expected = CASES[name]
    acting = effective_fsdp(given)
    assert acting is not None
    seen = asdict(acting)
    assert {key: seen[key] for key in expected} == expected


def test_a_block_of_accelerate_is_a_deepspeed_configuration() -> None:
    """The configuration that accelerate builds, with the path that does not arrive."""
    given = {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "nvme", "offload_param_nvme_path": "/nvme"}
    acting = effective_fsdp(subject("accelerate", deepspeed(given | {"gradient_accumulation_steps": 4}, mixed_precision="bf16")))
    assert acting is not None
    assert acting.framework == "deepspeed"
    assert acting.deepspeed is not None
    assert acting.deepspeed["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "nvme", "nvme_path": "none"},
        "stage3_gather_16bit_weights_on_model_save": False,
    }
    assert acting.deepspeed["bf16"] == {"enabled": True}
    assert acting.deepspeed["gradient_accumulation_steps"] == 4


def test_a_file_beside_it_says_the_rest() -> None:
    """Nothing is made up for deepspeed_config_file; a mapping of the Trainer's is taken as it is."""
    beside = effective_fsdp(subject("accelerate", deepspeed({"deepspeed_config_file": "ds_config.json"})))
    assert beside is not None
    assert beside.framework == "deepspeed"
    assert beside.deepspeed is None
    own = effective_fsdp(subject("hf_trainer", {"deepspeed": {"zero_optimization": {"stage": 2}}}))
    assert own is not None
    assert own.deepspeed == {"zero_optimization": {"stage": 2}}
    assert effective_fsdp(subject("deepspeed", {"zero_optimization": {"stage": 2}})) is None
