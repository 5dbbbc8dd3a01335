"""Every way of sharding, started from the same saved weights, computes the same training.

The scripts load a folder with --model, as a user would: from_pretrained on every rank, through partitioned loading at
stage 3, or on rank 0 and sent out in slices by FSDP2. The data can be learned and the rate is high, so that the loss falls
by 0.4 in five steps and a wrong update shows; the norm exceeds 1, so that clipping is part of the update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ConflictError
from app.emit.ds_script import deepspeed_script
from tests.emit.jobs import TINY_MIXTRAL, make_job, tiny_llama
from tests.verify.agreement import FP32, LOW, LOW_LEARNING, assert_same
from tests.verify.conftest import Finetuner

DDP: dict[str, Any] = {"framework": "ddp", "precision": "fp32"}
FSDP2: dict[str, Any] = {"framework": "fsdp2", "precision": "fp32"}
# torch's AdamW, so that no kernel has to be compiled first.
DEEPSPEED: dict[str, Any] = {"framework": "deepspeed", "precision": "fp32", "optimizer_implementation": "foreach"}
TWO_RANKS = {"world_size": 2, "nodes": 1, "gpus_per_node": 2, "dp_shard": 2}
CPU, BOTH = {"offload_optimizer": "cpu"}, {"offload_optimizer": "cpu", "offload_parameters": "cpu"}

TORCH_WAYS: dict[str, dict[str, Any]] = {
    "FSDP2": {},
    "FSDP2 without resharding": {"strategy": "fsdp_grad_op"},
    "FSDP2 offloaded": BOTH,
    "FSDP2 with tensor parallelism": {"tensor_parallel": 2, "dp_shard": 4},
}
ZERO_WAYS: dict[str, dict[str, Any]] = {
    "ZeRO-1": {"strategy": "zero1"},
    "ZeRO-2": {"strategy": "zero2"},
    "ZeRO-3": {"strategy": "zero3"},
    "ZeRO-3, small buckets, nothing persistent": {
        "strategy": "zero3",
        "reduce_bucket_numel": 4096,
        "prefetch_bucket_numel": 2048,
        "param_persistence_numel": 0,
        "max_live_numel": 20_000,
        "max_reuse_distance_numel": 0,
        "sub_group_numel": 10_000,
    },
}
OFFLOADED_WAYS: dict[str, dict[str, Any]] = {
    "ZeRO-1, optimizer on the CPU": {"strategy": "zero1", **CPU},
    "ZeRO-2, optimizer on the CPU": {"strategy": "zero2", **CPU},
    "ZeRO-3, optimizer on the CPU": {"strategy": "zero3", **CPU},
    "ZeRO-3, optimizer and parameters on the CPU": {"strategy": "zero3", **BOTH},
}


@pytest.mark.files("fsdp2_train.py", "torch", "transformers")
@pytest.mark.parametrize("way", TORCH_WAYS)
def test_fsdp2_trains_loaded_weights_as_ddp_does(finetuned: Finetuner, way: str) -> None:
    """From the same folder of weights, step by step as DDP."""
    assert_same(finetuned(2, **FSDP2, **TORCH_WAYS[way]), finetuned(2, **DDP))


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize("way", ZERO_WAYS)
def test_zero_trains_loaded_weights_as_ddp_does(finetuned: Finetuner, way: str) -> None:
    """From the same folder of weights, step by step as DDP."""
    assert_same(finetuned(2, **DEEPSPEED, **ZERO_WAYS[way]), finetuned(2, **DDP))


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize("way", OFFLOADED_WAYS)
def test_offloaded_zero_trains_as_ddp_does(finetuned: Finetuner, way: str) -> None:
    """The same with DeepSpeed's CPU Adam, which is compiled at the first run."""
    assert_same(finetuned(2, **DEEPSPEED, **OFFLOADED_WAYS[way]), finetuned(2, **DDP))


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
def test_stage_0_has_the_losses_of_ddp(finetuned: Finetuner) -> None:
    """DeepSpeed tells no norm without ZeRO; losses after clipped updates are DDP's."""
    losses = [step.loss for step in finetuned(2, **DEEPSPEED, strategy="ddp")]
    assert losses == pytest.approx([step.loss for step in finetuned(2, **DDP)], abs=FP32.loss)


@pytest.mark.files("fsdp2_train.py, ddp_train.py", "torch", "transformers")
def test_learning_is_what_is_compared(finetuned: Finetuner) -> None:
    """Were the loss flat or the norm below the clip, agreement would say little."""
    steps = finetuned(2, **DDP)
    assert steps[2].loss < steps[0].loss - 0.2
    assert max(step.grad_norm for step in steps) > 1.5


@pytest.mark.files("fsdp2_train.py, ddp_train.py", "torch", "transformers")
@pytest.mark.parametrize("framework", ["ddp", "fsdp2"])
def test_clipping_changes_the_update(finetuned: Finetuner, framework: str) -> None:
    """With SGD a clip of 0.1 shortens each step: same first loss and norm, another second loss; without, none is applied."""
    common = {"framework": framework, "precision": "fp32", "optimizer": "sgd"}
    clipped, free = finetuned(2, **common, gradient_clipping=0.1), finetuned(2, **common, gradient_clipping=0.0)
    assert_same(clipped[:1], free[:1])
    assert clipped[1].loss > free[1].loss + 1e-4


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
@pytest.mark.parametrize("clipping", [0.1, 0.0])
def test_deepspeed_clips_as_ddp_does(finetuned: Finetuner, strategy: str, clipping: float) -> None:
    """With SGD, where the size of the gradient counts, and with 0, which means no clipping."""
    changes = {"optimizer": "sgd", "gradient_clipping": clipping}
    assert_same(finetuned(2, **DEEPSPEED, strategy=strategy, **changes), finetuned(2, **DDP, **changes))


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize(("strategy", "ranks"), [("zero1", 2), ("zero3", 2), ("zero3", 4)])
def test_tensor_parallel_zero_agrees(finetuned: Finetuner, strategy: str, ranks: int) -> None:
    """Matrices split over two ranks; at stage 3 the head too, so that each rank has a slice of the logits."""
    split = {"strategy": strategy, "tensor_parallel": 2, "dp_shard": 4}
    assert_same(finetuned(ranks, **DEEPSPEED, **split), finetuned(2, **DDP))


def test_a_fused_loss_under_tensor_parallel_zero_has_no_script() -> None:
    """DeepSpeed would put a layer of its own in place of the head the loss is fused into."""
    with pytest.raises(ConflictError, match="fused_loss with tensor_parallel 2"):
        deepspeed_script(make_job(**DEEPSPEED, strategy="zero3", tensor_parallel=2, dp_shard=4, fused_loss=True))


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_momentum_under_zero_agrees(finetuned: Finetuner, strategy: str) -> None:
    """SGD with momentum, which ZeRO shards only when told that this is meant."""
    changes = {"optimizer": "sgd_momentum"}
    assert_same(finetuned(2, **DEEPSPEED, strategy=strategy, **changes), finetuned(2, **DDP, **changes))


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
def test_hpz_changes_no_result(finetuned: Finetuner) -> None:
    """A second copy of the weights per group of two among four ranks."""
    changes = {**DEEPSPEED, "strategy": "zero3", "param_persistence_numel": 0}
    assert_same(finetuned(4, **changes, hpz_group_size=2), finetuned(2, **DDP))


@pytest.mark.files("fsdp2_train.py, ddp_train.py", "torch", "transformers")
def test_bf16_ddp_and_fsdp2_stay_near_fp32(finetuned: Finetuner) -> None:
    """Autocast and a mixed-precision policy: before the first update, and after it."""
    for framework in ("ddp", "fsdp2"):
        low, full = finetuned(2, framework=framework), finetuned(2, **DDP)
        assert_same(low[:1], full[:1], LOW)
        assert_same(low[1:3], full[1:3], LOW_LEARNING)


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
def test_zero_stages_in_bf16_agree(finetuned: Finetuner) -> None:
    """Stages 1, 2 and 3 round alike; all stay near fp32."""
    low = {**DEEPSPEED, "precision": "bf16"}
    runs = [finetuned(2, **low, strategy=f"zero{stage}") for stage in (1, 2, 3)]
    full = finetuned(2, **DDP)
    for steps in runs:
        assert_same(steps[:1], full[:1], LOW)
        assert_same(steps[1:3], full[1:3], LOW_LEARNING)
        assert_same(steps[1:3], runs[0][1:3], LOW_LEARNING)


TIED_WAYS = {"FSDP2": FSDP2, **{f"ZeRO-{stage}": {**DEEPSPEED, "strategy": f"zero{stage}"} for stage in (1, 2, 3)}}
LORA = {"adapter": {"kind": "lora", "rank": 4, "targets": "all-linear"}}


@pytest.mark.files("fsdp2_train.py, ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize("way", TIED_WAYS)
def test_tied_embeddings_stay_one_weight(finetuned: Finetuner, way: str) -> None:
    """Input and output table are the same tensor, and both of its gradients reach it."""
    config, model = {"tie_word_embeddings": True}, {"model": tiny_llama(tied=True)}
    assert_same(finetuned(2, config=config, **TIED_WAYS[way], **model), finetuned(2, config=config, **DDP, **model))


@pytest.mark.files("fsdp2_train.py, ds_train.py, ds_config.json", "deepspeed", "torch", "transformers", "peft")
@pytest.mark.parametrize("way", TIED_WAYS)
def test_lora_on_loaded_weights_agrees(finetuned: Finetuner, way: str) -> None:
    """A frozen base and adapters, whoever shards them."""
    adapted = finetuned(2, **TIED_WAYS[way], job=LORA)
    assert_same(adapted, finetuned(2, **DDP, job=LORA))
    assert adapted[0].loss == pytest.approx(finetuned(2, **DDP)[0].loss, abs=FP32.loss)
    assert adapted[1].loss < adapted[0].loss


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
def test_a_mixture_of_experts_agrees_with_ddp(finetuned: Finetuner) -> None:
    """Stage 3 gathers the block of experts whole, whichever of them a rank's tokens go to."""
    model = {"model": tiny_llama(moe=True)}
    sharded = finetuned(2, config=TINY_MIXTRAL, **DEEPSPEED, strategy="zero3", **model)
    assert_same(sharded, finetuned(2, config=TINY_MIXTRAL, **DDP, **model))


@pytest.mark.skipif(not Path("/usr/include/libaio.h").exists(), reason="libaio's header is missing: apt-get install libaio-dev")
@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize("parameters", ["none", "nvme"])
def test_nvme_offload_changes_no_result(finetuned: Finetuner, tmp_path: Path, parameters: str) -> None:
    """Optimizer states, then parameters too, are on a drive; a wider model, for tensors under 1 MiB stay in memory."""
    config = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 4096, "num_hidden_layers": 4}
    model = {"model": tiny_llama(hidden_size=256, vocab_size=4096, num_layers=4)}
    small = {"param_persistence_numel": 0, "prefetch_bucket_numel": 1000, "sub_group_numel": 600_000}
    common = {"config": config, **DEEPSPEED, **TWO_RANKS, **model, **small, "strategy": "zero3"}
    places = {"offload_optimizer": "nvme", "offload_parameters": parameters, "job": {"nvme_path": str(tmp_path)}}
    assert_same(finetuned(2, **common, **places), finetuned(2, **common))
    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.swp") if path.stat().st_size]
    assert any("exp_avg_sq" in path for path in written), written
    assert any("params" in path for path in written) == (parameters == "nvme"), written
