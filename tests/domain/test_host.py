"""Host memory of a node: what each way of loading, offloading, pinning and swapping takes."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.plan import Plan
from tests.planning import plan_of

PARAMS = {"params": 8e9}
ONE_STEP = {"seq_len": 512, "micro_batch": 1, "grad_accum": 1, "activation_checkpointing": "full", "activation_offload": False}
MIB64 = 64 * 2**20


def planned(strategy: str, training: dict[str, Any] | None = None, *, model: Any = None, gpus: int = 8, **pins: Any) -> Plan:
    """The plan of a pinned strategy, nothing offloaded unless said."""
    pool, nodes = pins.pop("pool", {}), pins.pop("nodes", 1)
    framework = "fsdp2" if strategy in ("fsdp_full", "hsdp") else pins.pop("framework", "deepspeed")
    constraints = {"framework": framework, "strategy": strategy, "offload_optimizer": "none", "offload_parameters": "none"} | pins
    return plan_of(model or PARAMS, ONE_STEP | (training or {}), gpus=gpus, nodes=nodes, constraints=constraints, pool=pool)


def host_gb(plan: Plan, name: str) -> float:
    """GB of a host term, 0 where it is not there."""
    return sum(t.value for t in plan.recommended.host.terms if t.name == name) / 1e9


@pytest.mark.parametrize(
    ("strategy", "framework", "gigabytes"),
    [("ddp", "ddp", 8 * 4 * 8), ("ddp", "deepspeed", 8 * 2 * 8), ("zero1", "deepspeed", 8 * 2 * 8), ("zero2", "deepspeed", 8 * 2 * 8),
     ("zero3", "deepspeed", 8 * 2), ("fsdp_full", "fsdp2", 8 * 4)],
)  # fmt: skip
def test_load_peak_is_that_of_the_emitted_scripts(strategy: str, framework: str, gigabytes: float) -> None:
    """Every rank loads a whole copy, in the script's dtype, except under stage 3 and FSDP2, where rank 0 loads alone."""
    plan = planned(strategy, framework=framework)
    assert host_gb(plan, "model while loading") == pytest.approx(gigabytes)
    assert plan.recommended.host.peak_bytes >= gigabytes * 1e9


def test_load_peak_counts_ranks_of_one_node_and_the_whole_model() -> None:
    """More nodes do not add copies to a node, and a split model is still loaded whole."""
    one, two = planned("zero2"), planned("zero2", nodes=2)
    split = planned("zero1", tensor_parallel=2)
    assert {host_gb(p, "model while loading") for p in (one, two, split)} == {128.0}


def test_adapter_base_is_loaded_in_the_compute_dtype() -> None:
    """A frozen base needs no fp32: 2 bytes a parameter under FSDP2, though adapters train in fp32."""
    plan = planned("fsdp_full", {"adapter": {"kind": "lora"}})
    assert host_gb(plan, "model while loading") == pytest.approx(16)


@pytest.mark.parametrize(("accum", "bytes_each"), [(1, 18), (4, 20)])
def test_stage2_offload_is_18_or_20_bytes(accum: int, bytes_each: int) -> None:
    """Master 4, gradient 4, staging 2, moments 8; with accumulation 2 more. The buffer of the largest parameter is on top."""
    plan = planned("zero2", {"grad_accum": accum}, offload_optimizer="cpu")
    assert host_gb(plan, "optimizer states on the host") == pytest.approx(8 * bytes_each)
    assert host_gb(plan, "transfer buffers") > 0


def test_stage3_offload_is_18_bytes_whatever_the_accumulation() -> None:
    """Stage 3 sums in a flat buffer of the accumulation dtype: 2 bytes, or 4 in fp32; it has no transfer buffer."""
    for training, each in (({}, 18), ({"grad_accum": 4}, 18), ({"grad_dtype": "fp32"}, 20)):
        plan = planned("zero3", training, offload_optimizer="cpu")
        assert host_gb(plan, "optimizer states on the host") == pytest.approx(8 * each)
        assert host_gb(plan, "transfer buffers") == 0


def test_single_gpu_offload_counts_like_many() -> None:
    """One GPU runs the same engine: stage 3 with parameters on the host takes 20 bytes, and 2 that its allocator keeps."""
    plan = planned("zero3", gpus=1, offload_optimizer="cpu", offload_parameters="cpu")
    terms = {t.name: t.value / 1e9 for t in plan.recommended.host.terms}
    assert terms["optimizer states on the host"] == pytest.approx(144)
    assert terms["parameters on the host"] == terms["pinned blocks the allocator keeps"] == pytest.approx(16)


def test_pure_bf16_offload_is_10_bytes() -> None:
    """Without a fp32 master: copy 2, gradient 2, staging 2, moments 4."""
    plan = planned("zero2", {"master_weights": False}, offload_optimizer="cpu")
    assert host_gb(plan, "optimizer states on the host") == pytest.approx(80)


def test_fsdp2_offload_is_16_bytes_of_shards() -> None:
    """fp32 shard 4 and gradient 4, both pinned, and moments 8; the copy on rank 0 comes before the last two."""
    plan = planned("fsdp_full", offload_optimizer="cpu", offload_parameters="cpu")
    states, weights = host_gb(plan, "optimizer states on the host"), host_gb(plan, "parameters on the host")
    assert states == pytest.approx(96, rel=1e-3)
    assert weights == pytest.approx(32, rel=1e-3)
    rounding = host_gb(plan, "pinned blocks rounded up")
    assert plan.recommended.host.peak_bytes / 1e9 == pytest.approx(states + weights + rounding, rel=1e-6)


def test_more_nodes_divide_what_is_offloaded() -> None:
    """Two nodes hold half each."""
    one, two = (planned("zero3", nodes=n, offload_optimizer="cpu") for n in (1, 2))
    assert host_gb(one, "optimizer states on the host") == pytest.approx(2 * host_gb(two, "optimizer states on the host"))


def test_nvme_offload_still_needs_host_memory() -> None:
    """Four fp32 buffers of one tile in each rank and the flat gradients stay in memory; parameter buffers hold the largest shard."""
    plan = planned("zero3", {}, offload_optimizer="nvme", offload_parameters="nvme", pool={"nvme_gb": 10000})
    tile = plan.recommended.settings.sub_group_numel
    assert host_gb(plan, "optimizer states on the host") == pytest.approx(16)
    swap = [t.value for t in plan.recommended.host.terms if t.name == "NVMe swap buffers"]
    assert len(swap) == 2
    assert 4 * tile * 4 * 8 <= swap[0] <= 4 * (tile + 8e9 / 8) * 4 * 8
    assert host_gb(plan, "parameters on the host") == 0


def test_weights_are_flattened_on_the_host_where_the_gpu_has_no_room() -> None:
    """13e9 parameters in 16 bits take 26 GB: a second copy fits 80 GB, not 40, where each of 8 ranks takes 52 GB of the host instead."""
    wide, narrow = (planned("zero2", model={"params": 13e9}, pool={"gpu": gpu}) for gpu in ("a100-sxm-80gb", "a100-sxm-40gb"))
    assert host_gb(wide, "weights flattened on the host") == 0
    assert host_gb(narrow, "weights flattened on the host") == pytest.approx(416)


def test_offloaded_activations_are_rounded_up_to_powers_of_two() -> None:
    """A block input of 512 tokens, 5,120 wide, in 2 bytes is 5 MiB and takes 8; 4,096 wide it is 4 MiB and takes no more."""
    shape = {"num_layers": 4, "num_heads": 32, "ffn_hidden_size": 8192, "vocab_size": 32000, "head_dim": 128}
    extras = []
    for hidden in (5120, 4096):
        plan = planned("fsdp_full", {"activation_offload": True}, model={"shape": shape | {"hidden_size": hidden}})
        extras.append(host_gb(plan, "pinned blocks rounded up") * 1e9)
    assert extras == pytest.approx([3 * 2**20 * 4 * 8, 0])


def test_averaged_weights_follow_the_states_to_the_host() -> None:
    """EMA of offloaded weights is on the host."""
    kept = planned("fsdp_full", {"ema": True}, offload_optimizer="cpu", offload_parameters="cpu")
    assert host_gb(kept, "averaged weights on the host") == pytest.approx(32, rel=1e-3)
    assert host_gb(planned("fsdp_full", {"ema": True}), "averaged weights on the host") == 0


def test_a_plan_that_fits_the_gpu_and_kills_the_node_does_not_fit() -> None:
    """The verdict, the summary and the capacity speak of the host; 5 % of it stay free, and from 90 % on it is tight."""
    pins = {"offload_optimizer": "cpu"}
    need = planned("zero2", **pins).recommended.host.peak_bytes
    verdicts = {}
    for share in (1.2, 0.93, 0.5):
        plan = planned("zero2", **pins, pool={"host_memory_gib": need / share / 2**30})
        verdicts[share] = plan.verdict
        assert plan.recommended.gpu.needed_bytes < plan.recommended.gpu.capacity_bytes
        codes = {w.code for w in plan.warnings}
        assert ("host_tight" in codes) is (share == 0.93)
        if share == 1.2:
            assert "of host memory on each node" in plan.summary
            assert "optimizer states on the host" in plan.summary
            assert plan.recommended.host.capacity_bytes == pytest.approx(0.95 * need / share, rel=1e-6)
    assert verdicts == {1.2: "does_not_fit", 0.93: "tight", 0.5: "fits"}
