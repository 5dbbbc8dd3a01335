"""Files that work have no error: our own, those the library accepted, and those of the libraries' own documentation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.audit.finding import Finding
from app.audit.rules import audit
from app.audit.subject import ClusterFacts, Subject, TrainingFacts
from app.domain.errors import InvalidRequestError
from app.domain.recipe.recipe import Recipe
from app.emit.deepspeed import Dialect, deepspeed_config
from app.emit.job import EmitJob
from app.services.audit_subject import model_facts
from tests.audit.facts import LLAMA_8B, NODE, TRAINING, subject
from tests.emit.variants import all_jobs

AUTO_BATCH = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
)
ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
WARMUP = {"type": "WarmupLR", "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")}
SCALED = {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
TRAINER: dict[str, Any] = {"fp16": SCALED, "bf16": {"enabled": "auto"}, "optimizer": ADAMW, "scheduler": WARMUP, "steps_per_print": 2000,
                           "wall_clock_breakdown": False, **AUTO_BATCH}  # fmt: skip
ZERO_3 = {
    "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True,
}  # fmt: skip
CPU = {"device": "cpu", "pin_memory": True}
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "Trainer, stage 2 with offload": ("hf_trainer", TRAINER | {"zero_optimization": {
        "stage": 2, "offload_optimizer": CPU, "allgather_partitions": True, "allgather_bucket_size": 2e8, "overlap_comm": True,
        "reduce_scatter": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True}}),
    "Trainer, stage 3 with "
    "offload": ("hf_trainer", TRAINER | {"zero_optimization": ZERO_3 | {"offload_optimizer": CPU, "offload_param": CPU}}),
    "accelerate, stage 3": ("accelerate", {"bf16": {"enabled": "auto"}, "zero_optimization": ZERO_3, **AUTO_BATCH}),
    "own loop, stage "
    "2": ("deepspeed", {"train_batch_size": 64, "steps_per_print": 2000, "gradient_clipping": 1.0, "prescale_gradients": False,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 1000}},
        "bf16": {"enabled": True}, "wall_clock_breakdown": False, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e7}}),
    "own loop, swapped": ("deepspeed", {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 4, "fast_init": False},
        "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9}},
        "aio": {"block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True}}),
    "stage 2 and a param offload that is ignored": ("deepspeed", {"train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}),
    "old keys": ("deepspeed", {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "cpu_offload": True}}),
    "numbers as 5e8": ("deepspeed", {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}}),
    "own optimizer, offloaded": ("deepspeed", {"train_micro_batch_size_per_gpu": 1, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}),
}  # fmt: skip


def errors(given: Subject) -> list[Finding]:
    """What an audit calls an error."""
    return [finding for finding in audit(given).findings if finding.severity == "error"]


@pytest.mark.parametrize("name", PLAIN)
def test_files_of_documentation_have_no_error(name: str) -> None:
    """As the libraries' guides print them, on one node of eight."""
    launcher, config = PLAIN[name]
    for more in ({}, {"model": LLAMA_8B, "cluster": NODE, "training": TRAINING}):
        assert not errors(subject(config, launcher=launcher, **more))
    assert not errors(subject(config, launcher=launcher, client_optimizer="torch.optim.AdamW", world_size=8)) or "scheduler" not in config


def around(job: EmitJob) -> tuple[ClusterFacts, TrainingFacts]:
    """GPUs and recipe of a job."""
    s = job.settings
    cluster = replace(NODE, gpus_per_node=s.gpus_per_node, nodes=s.nodes, inter_node_bytes_per_s=50e9 if s.nodes > 1 else None)
    return cluster, replace(TRAINING, micro_batch=s.micro_batch, grad_accum=s.grad_accum, precision=s.precision)


JOBS = {name: job for name, job in all_jobs().items() if job.settings.framework == "deepspeed"}


@pytest.mark.parametrize("dialect", ["plain", "hf_auto"])
@pytest.mark.parametrize("name", JOBS)
def test_our_own_files_have_no_error(name: str, dialect: Dialect) -> None:
    """Every variant that the emitter writes, read back with everything known of it."""
    job = JOBS[name]
    try:
        config = json.loads(deepspeed_config(job, dialect=dialect).text)
    except InvalidRequestError:
        pytest.fail(f"{name} is no plan of DeepSpeed's")
    cluster, training = around(job)
    s = job.settings
    given = subject(
        config, launcher="deepspeed" if dialect == "plain" else "hf_trainer", model=model_facts(job.model, Recipe(seq_len=64)),
        cluster=cluster, training=training, world_size=s.world_size, tp=s.tensor_parallel, pp=s.pipeline_parallel, sp=s.sequence_parallel,
    )  # fmt: skip
    assert not errors(given)
