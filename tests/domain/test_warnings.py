"""Warnings: each says what the framework really does with a request that suggests something else, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.plan import PlanWarning
from tests.planning import plan_of

PARAMS = {"params": 8e9}
STEP = {"seq_len": 512, "micro_batch": 1, "grad_accum": 1, "activation_checkpointing": "full", "activation_offload": False}
PINS: dict[str, dict[str, Any]] = {
    "stage0": {"framework": "deepspeed", "strategy": "ddp"},
    "zero1": {"framework": "deepspeed", "strategy": "zero1"},
    "zero2": {"framework": "deepspeed", "strategy": "zero2"},
    "zero3": {"framework": "deepspeed", "strategy": "zero3"},
    "fsdp2": {"framework": "fsdp2", "strategy": "fsdp_full"},
    "ddp": {"framework": "ddp", "strategy": "ddp"},
}
OFFLOAD = {"offload_optimizer": "cpu"}
BOTH = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
ON_GPU = {"offload_optimizer": "none", "offload_parameters": "none"}


def warned(how: str, training: dict[str, Any] | None = None, pins: dict[str, Any] | None = None, **rest: Any) -> dict[str, PlanWarning]:
    """Warnings of a pinned plan, by code."""
    model = rest.pop("model", PARAMS)
    constraints = PINS[how] | ON_GPU | (pins or {})
    return {w.code: w for w in plan_of(model, STEP | (training or {}), constraints=constraints, **rest).warnings}


QLORA = {"adapter": {"kind": "qlora"}}
CONTRADICTIONS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("offload_parameters_ignored", "zero2", {}, BOTH),
    ("nvme_becomes_cpu", "zero2", {}, {"offload_optimizer": "nvme"}),
    ("no_master_of_quantised", "zero2", QLORA, {}),
    ("no_master_of_quantised", "fsdp2", QLORA, {}),
    ("no_master_of_quantised", "ddp", QLORA, {}),
    ("stage0_accumulation", "stage0", {"grad_dtype": "fp32"}, {}),
    ("zero1_fp32_accumulation", "zero1", {"grad_dtype": "fp32"}, {}),
    ("zero1_fp32_accumulation", "zero1", {"grad_dtype": "fp32", "precision": "fp16"}, {}),
    ("grad_dtype_ignored", "ddp", {"grad_dtype": "bf16"}, {}),
    ("grad_dtype_ignored", "zero2", {"grad_dtype": "fp32", "master_weights": False}, {}),
    ("grad_dtype_ignored", "zero2", {"grad_dtype": "bf16", "precision": "fp32"}, {}),
    ("grad_dtype_ignored", "fsdp2", {"grad_dtype": "bf16", "precision": "fp32"}, {}),
    ("grad_dtype_on_the_wire", "fsdp2", {"grad_dtype": "bf16"}, {}),
    ("grad_dtype_overflows", "zero2", {"grad_dtype": "fp16"}, {}),
    ("step_in_backward_ignored", "zero2", {"optimizer_in_backward": True}, {}),
    ("step_in_backward_ddp", "ddp", {"optimizer_in_backward": True}, {}),
    ("step_in_backward_accumulates", "fsdp2", {"optimizer_in_backward": True, "grad_accum": 4}, {}),
    ("muon_without_reduce_scatter", "zero3", {"optimizer": "muon"}, {}),
    ("eight_bit_offloaded", "zero2", {"optimizer": "adamw_8bit"}, OFFLOAD),
    ("eight_bit_offloaded", "fsdp2", {"optimizer": "paged_adamw_8bit"}, BOTH),
    ("paged_not_paged", "fsdp2", {"optimizer": "paged_adamw_8bit"}, {}),
    ("no_cpu_kernel", "zero2", {"optimizer": "adafactor"}, OFFLOAD),
    ("state_dtype_unsupported", "fsdp2", {"optimizer_state_dtype": "bf16"}, {}),
    ("state_dtype_unsupported", "zero2", {"optimizer_state_dtype": "int8"}, {}),
    ("state_dtype_unsupported", "zero2", {"optimizer_state_dtype": "fp32", "optimizer": "adamw_8bit"}, {}),
    ("implementation_ignored", "fsdp2", {"optimizer_implementation": "deepspeed_fused"}, {}),
    ("implementation_ignored", "zero2", {"optimizer_implementation": "cpu"}, {}),
    ("implementation_ignored", "zero2", {"optimizer_implementation": "foreach"}, OFFLOAD),
    ("activation_offload_uncheckpointed", "fsdp2", {"activation_checkpointing": "none", "activation_offload": True}, {}),
    ("not_in_script", "zero2", {"tiled_mlp": True}, {}),
    ("not_in_script", "zero2", {"ema": True}, {}),
]
ABOUT_CHOICES = {code for code, *_ in CONTRADICTIONS}


@pytest.mark.parametrize(("code", "how", "training", "pins"), CONTRADICTIONS)
def test_contradiction_is_said(code: str, how: str, training: dict[str, Any], pins: dict[str, Any]) -> None:
    """The warning names the field and a way out."""
    found = warned(how, training, pins)
    assert code in found
    section, name = found[code].field.split(".")
    given = {"training": training, "constraints": pins}[section]
    assert name in given or code == "no_master_of_quantised"
    assert found[code].fix


@pytest.mark.parametrize("how", PINS)
@pytest.mark.parametrize("offload", [ON_GPU, OFFLOAD, BOTH])
def test_a_plain_request_contradicts_nothing(how: str, offload: dict[str, Any]) -> None:
    """AdamW in bf16 with fp32 masters and full checkpointing, offloaded as the strategy can."""
    legal = {"stage0": [ON_GPU], "ddp": [ON_GPU], "fsdp2": [ON_GPU, BOTH], "zero3": [ON_GPU, OFFLOAD, BOTH]}.get(how, [ON_GPU, OFFLOAD])
    if offload not in legal:
        offload = ON_GPU
    assert ABOUT_CHOICES & set(warned(how, {}, offload)) == set()


def test_supported_choices_are_not_warned_about() -> None:
    """The same settings where they do what they say."""
    silent = [
        ("zero2", {"grad_dtype": "fp32"}, {}),
        ("zero2", {"optimizer_state_dtype": "bf16", "master_weights": False}, {}),
        ("fsdp2", {"optimizer_in_backward": True}, {}),
        ("fsdp2", {"optimizer": "adamw_8bit", "optimizer_state_dtype": "int8"}, {}),
        ("zero2", {"optimizer": "lion"}, OFFLOAD),
        ("zero2", {"optimizer": "muon"}, {}),
        ("zero2", {"optimizer": "paged_adamw_8bit"}, {}),
        ("fsdp2", {"activation_offload": True}, {}),
        ("zero2", {"grad_dtype": "fp16", "precision": "fp16"}, {}),
    ]
    for how, training, pins in silent:
        assert ABOUT_CHOICES & set(warned(how, training, pins)) == set(), (how, training)


def test_accumulation_in_fp16_at_stage_1_is_not_called_bf16_optimizer() -> None:
    """BF16_Optimizer is for bf16 on the GPU; fp16 keeps whole fp32 gradients in another way."""
    bf16 = warned("zero1", {"grad_dtype": "fp32"})["zero1_fp32_accumulation"]
    fp16 = warned("zero1", {"grad_dtype": "fp32", "precision": "fp16"})["zero1_fp32_accumulation"]
    assert "BF16_Optimizer" in bf16.message
    assert "BF16_Optimizer" not in fp16.message


@pytest.mark.parametrize(("how", "fix"), [("zero3", "HfDeepSpeedConfig"), ("fsdp2", "ACCELERATE_USE_FSDP"), ("zero2", "dtype")])
def test_loading_on_every_rank_is_warned_about_where_it_would_kill_the_node(how: str, fix: str) -> None:
    """8e9 parameters × 4 bytes × 8 ranks are 238 GiB: an error of a script on a node of 200, no matter on one of 2,048."""
    small = warned(how, pool={"host_memory_gib": 200})["load_peak"]
    assert "8 B parameters × 4 bytes × 8 ranks = 238 GiB" in small.message
    assert small.severity == "warning"
    assert fix in small.fix
    assert warned(how, pool={"host_memory_gib": 400})["load_peak"].severity == "info"
    assert "load_peak" not in warned(how, pool={"host_memory_gib": 2048})


def test_quantised_bases_are_not_loaded_whole() -> None:
    """bitsandbytes quantises as it reads: no warning of a copy in each rank."""
    found = warned("ddp", {"adapter": {"kind": "qlora"}}, pool={"host_memory_gib": 100})
    assert not {"load_peak", "init_peak"} & set(found)


@pytest.mark.parametrize(
    ("how", "arithmetic"), [("fsdp2", "8 B parameters × 4 bytes = 29.8 GiB"), ("zero3", "8 B parameters × 2 bytes = 14.9 GiB")]
)
def test_whole_model_on_each_gpu_before_sharding_is_warned_about(how: str, arithmetic: str) -> None:
    """8e9 parameters, whole in fp32, overflow 24 GiB though their shards fit; in 16 bits they overflow 16."""
    memory = {"fsdp2": 24, "zero3": 16}[how]
    pool = {"gpu": "rtx-3090", "gpu_memory_gib": memory, "host_memory_gib": 2048}
    found = warned(how, pool=pool, nodes=4)["init_peak"]
    assert arithmetic in found.message
    assert "init_peak" not in warned(how, nodes=4)


def test_default_sizes_that_would_not_fit_are_warned_about() -> None:
    """Four buffers of DeepSpeed's tile of 1e9 elements are 128 GB of a node of 8 ranks; a plan that fits only with its own tile says so."""
    nvme = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}
    for host, said in ((200, True), (400, False)):
        pool = {"nvme_gb": 10000, "host_memory_gib": host}
        found = warned("zero3", {"fused_loss": True}, nvme, model={"params": 7e10}, pool=pool)
        assert ("default_sizes" in found) is said, host
        if said:
            assert "sub_group_size 100,000,000" in found["default_sizes"].message
            assert "1,000,000,000" in found["default_sizes"].message
    assert "default_sizes" not in warned("zero3")


def test_what_the_tensor_script_keeps_whole_is_said() -> None:
    """FSDP2's script splits the blocks' matrices only; DeepSpeed's files and plans without a tensor axis say nothing of it."""
    training = {"seq_len": 8192, "micro_batch": 2, "activation_checkpointing": "full"}
    model = {"preset": "llama-3.1-8b"}

    def codes(framework: str, strategy: str, degree: int) -> dict[str, str]:
        plan = plan_of(model, training, constraints={"framework": framework, "strategy": strategy, "tensor_parallel": degree})
        return {w.code: w.message for w in plan.warnings}

    split = codes("fsdp2", "fsdp_full", 4)
    assert "(4 - 1) ×" in split["tensor_script_keeps_more"]
    assert "tensor_script_keeps_more" not in codes("fsdp2", "fsdp_full", 1) | codes("deepspeed", "zero2", 4)


def test_superoffload_is_offered_on_coherent_links_only() -> None:
    """Grace's link makes it worth while; PCIe does not, and neither does a stage that ignores the setting."""
    grace = {"pool": {"gpu": "gh200-96gb"}}
    found = warned("zero3", pins=OFFLOAD, **grace)
    assert "gradient_clipping 0" in found["superoffload_possible"].fix
    assert "superoffload_possible" not in warned("zero3", pins=OFFLOAD)
    assert "superoffload_possible" not in warned("zero2", pins=OFFLOAD, **grace)
    assert "superoffload_possible" not in warned("zero3", **grace)
