"""ds_config.json says exactly what the plan says, in every combination, and nothing DeepSpeed would drop."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from app.domain.errors import InvalidRequestError
from app.domain.model.infer import Shape, architecture_from_shape
from app.emit.deepspeed import deepspeed_config
from app.emit.job import EmitJob
from app.emit.model_source import SHAPED_MOE
from tests.emit.jobs import make_job, tiny_llama
from tests.emit.lint import FILLED_BY_TRAINER, autos, findings

SHAPED_MIXTURE = Shape(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, ffn_hidden_size=128, vocab_size=256,
                       num_experts=4, experts_per_token=2)  # fmt: skip
STRATEGIES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
OPTIMIZERS = ("adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor", "lion", "muon", "sgd_momentum", "sgd")
OFFLOADS = [("none", "none"), ("cpu", "none"), ("cpu", "cpu"), ("nvme", "none"), ("nvme", "nvme"), ("none", "cpu")]


def possible(strategy: str, offload: tuple[str, str], optimizer: str) -> bool:
    """Whether DeepSpeed has this combination at all."""
    stage = STRATEGIES[strategy]
    if stage == 0:
        return offload == ("none", "none")
    return stage == 3 or (offload[1] == "none" and offload[0] != "nvme")


def emitted(job: EmitJob, **options: Any) -> dict[str, Any]:
    """The file, read back."""
    config = json.loads(deepspeed_config(job, **options).text)
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "fp8"])
def test_no_combination_breaks_a_rule(strategy: str, precision: str) -> None:
    """Offload, optimizer, accumulation dtype, master copy and implementation in every possible combination."""
    checked = 0
    axes = product(OFFLOADS, OPTIMIZERS, ("own", "fp32"), (True, False), ("deepspeed_fused", "fused", "foreach"))
    for offload, optimizer, grad, master, implementation in axes:
        if not possible(strategy, offload, optimizer) or (not master and precision in ("fp16", "fp32")):
            continue
        changes: dict[str, Any] = {"grad_dtype": "fp32"} if grad == "fp32" else {}
        job = make_job(
            strategy=strategy,
            precision=precision,
            offload_optimizer=offload[0],
            offload_parameters=offload[1],
            optimizer=optimizer,
            master_weights=master,
            optimizer_implementation=implementation,
            **changes,
        )
        assert findings(emitted(job), job) == [], job.settings
        checked += 1
    assert checked >= 48


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_batch_is_consistent_and_the_stage_the_planned_one(strategy: str) -> None:
    """train_batch_size is micro_batch × grad_accum × data-parallel ranks."""
    config = emitted(make_job(strategy=strategy, micro_batch=3, grad_accum=5, dp_shard=8))
    assert config["train_batch_size"] == 3 * 5 * 8
    assert config["train_micro_batch_size_per_gpu"] == 3
    assert config["gradient_accumulation_steps"] == 5
    assert config["zero_optimization"]["stage"] == STRATEGIES[strategy]


def test_bucket_sizes_are_the_plans_in_elements() -> None:
    """Sizes go into the file as the settings hold them, without a conversion to bytes."""
    job = make_job(
        strategy="zero3",
        reduce_bucket_numel=11,
        prefetch_bucket_numel=12,
        param_persistence_numel=13,
        max_live_numel=14,
        max_reuse_distance_numel=15,
        sub_group_numel=16,
        overlap_comm=False,
    )
    zero = emitted(job)["zero_optimization"]
    assert zero["reduce_bucket_size"] == 11
    assert zero["stage3_prefetch_bucket_size"] == 12
    assert zero["stage3_param_persistence_threshold"] == 13
    assert zero["stage3_max_live_parameters"] == 14
    assert zero["stage3_max_reuse_distance"] == 15
    assert zero["sub_group_size"] == 16
    assert zero["overlap_comm"] is False


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_auto_only_where_the_trainer_fills_it(strategy: str, optimizer: str) -> None:
    """The Hugging Face dialect says auto in keys the Trainer fills, the plain dialect nowhere."""
    job = make_job(strategy=strategy, optimizer=optimizer)
    assert autos(emitted(job)) == set()
    found = autos(emitted(job, dialect="hf_auto"))
    assert found <= FILLED_BY_TRAINER
    assert {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"} <= found


def test_fp32_accumulation_at_stage_1_leaves_out_what_bf16_optimizer_ignores() -> None:
    """DeepSpeed then picks BF16_Optimizer, whose buckets are fixed."""
    config = emitted(make_job(strategy="zero1", grad_dtype="fp32"))
    assert config["zero_optimization"] == {"stage": 1}
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}


def test_a_reduction_dtype_of_its_own_is_written_and_the_default_is_not() -> None:
    """communication_data_type appears only where it changes something."""
    assert "communication_data_type" not in emitted(make_job())
    assert emitted(make_job(reduce_dtype="fp32"))["communication_data_type"] == "fp32"


def test_pure_bf16_needs_both_flags() -> None:
    """Master weights without optimizer states would need CPU Adam."""
    bf16 = emitted(make_job(strategy="zero3", master_weights=False))["bf16"]
    assert bf16 == {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}


def test_pure_fp16_is_refused_without_cpu_adam() -> None:
    """DeepSpeed keeps fp16 masters only in host memory."""
    with pytest.raises(InvalidRequestError, match="fp16"):
        deepspeed_config(make_job(precision="fp16", master_weights=False))
    job = make_job(precision="fp16", master_weights=False, offload_optimizer="cpu")
    assert emitted(job)["fp16"]["fp16_master_weights_and_grads"] is True


def test_experts_are_gathered_together_at_stage_3_only() -> None:
    """The class DeepSpeed must treat as one is the model's own, or that of the family the script builds from a shape."""
    moe = tiny_llama(moe=True)
    job = make_job(model=moe, strategy="zero3")
    assert findings(emitted(job), job) == []
    assert emitted(job)["zero_optimization"]["leaf_module"]["classes"] == ["MixtralSparseMoeBlock"]
    shaped = architecture_from_shape(SHAPED_MIXTURE)
    bare = {"hf_id": None, "hf_config": None}
    assert emitted(make_job(model=shaped, strategy="zero3", job=bare))["zero_optimization"]["leaf_module"]["classes"] == [SHAPED_MOE]
    assert "leaf_module" not in emitted(make_job(model=shaped, strategy="zero3"))["zero_optimization"]
    assert "leaf_module" not in emitted(make_job(model=moe, strategy="zero2"))["zero_optimization"]
    assert "leaf_module" not in emitted(make_job(strategy="zero3"))["zero_optimization"]


def test_hpz_appears_only_when_on_and_must_divide_the_ranks() -> None:
    """ZeRO++'s secondary copy is shared by the GPUs of a node."""
    job = make_job(strategy="zero3", hpz_group_size=4)
    assert emitted(job)["zero_optimization"]["zero_hpz_partition_size"] == 4
    assert findings(emitted(job), job) == []
    assert "zero_hpz_partition_size" not in emitted(make_job(strategy="zero3"))["zero_optimization"]
    with pytest.raises(InvalidRequestError, match="does not divide 8"):
        deepspeed_config(make_job(strategy="zero3", hpz_group_size=3))


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("ddp", {"offload_optimizer": "cpu"}),
        ("zero2", {"offload_optimizer": "nvme"}),
        ("zero2", {"offload_parameters": "cpu"}),
        ("fsdp_full", {}),
    ],
)
def test_what_deepspeed_would_ignore_is_refused(strategy: str, changes: dict[str, Any]) -> None:
    """An offload the stage does not have is an error with its fix, not a key that does nothing."""
    with pytest.raises(InvalidRequestError, match=";"):
        deepspeed_config(make_job(strategy=strategy, **changes))


def test_other_axes_are_told_to_deepspeed() -> None:
    """Tensor and sequence parallelism have keys of their own, and the batch check sees the ranks DeepSpeed counts."""
    tensor = emitted(make_job(tensor_parallel=2, dp_shard=4))
    assert tensor["tensor_parallel"] == {"autotp_size": 2}
    stage3 = emitted(make_job(strategy="zero3", tensor_parallel=2, dp_shard=4))
    assert stage3["tensor_parallel"] == {"autotp_size": 2, "vocab_parallel_lm_head": True}
    assert "train_batch_size" not in tensor
    sequence = emitted(make_job(sequence_parallel=2, dp_shard=4, micro_batch=1, grad_accum=2))
    assert (sequence["sequence_parallel_size"], sequence["data_parallel_size"]) == (2, 4)
    assert "train_batch_size" not in sequence
    assert sequence["seq_parallel_communication_data_type"] == "bf16"


def test_zero_plus_plus_flags_are_written_where_they_are_chosen() -> None:
    """qwZ and qgZ are stage 3's own keys, absent unless the plan has them."""
    plain = emitted(make_job(strategy="zero3", dp_shard=8))["zero_optimization"]
    assert not {"zero_quantized_weights", "zero_quantized_gradients"} & plain.keys()
    chosen = emitted(make_job(strategy="zero3", dp_shard=8, quantized_weights=True, quantized_gradients=True))["zero_optimization"]
    assert chosen["zero_quantized_weights"] is True
    assert chosen["zero_quantized_gradients"] is True


def test_ratio_is_written_only_where_a_part_stays_on_the_gpu() -> None:
    """DeepSpeed refuses a ratio below stage 3, and 1 is its default."""
    whole = emitted(make_job(strategy="zero3", offload_optimizer="cpu"))["zero_optimization"]["offload_optimizer"]
    partly = emitted(make_job(strategy="zero3", offload_optimizer="cpu", offload_optimizer_ratio=0.625))["zero_optimization"]
    assert "ratio" not in whole
    assert partly["offload_optimizer"] == {"device": "cpu", "pin_memory": True, "ratio": 0.625}
