"""The GPU memory model beyond its properties: what single mechanisms add, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.catalog.fitted import fitted_rates
from app.domain.memory.overhead import kept_frac
from app.domain.memory.sureness import fit_probability, peak_ratios, safe_bytes, situation_of
from app.domain.model.infer import Shape, architecture_from_shape
from app.domain.model.parameters import total_params
from tests.planning import evaluate_request, plan_of, term_bytes

LLAMA: dict[str, Any] = {
    "shape": {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 14336, "vocab_size": 128256}
}
QWEN3_32B: dict[str, Any] = {
    "num_layers": 64, "hidden_size": 5120, "num_heads": 64, "num_kv_heads": 8, "ffn_hidden_size": 25600, "vocab_size": 151936,
}  # fmt: skip
NO_OFFLOAD = {"offload_optimizer": "none", "offload_parameters": "none"}
FSDP = {"framework": "fsdp2", "strategy": "fsdp_full", **NO_OFFLOAD}
STEP = {"seq_len": 4096, "micro_batch": 1, "activation_checkpointing": "full"}


def test_reserved_stays_within_the_device_while_the_run_fits() -> None:
    """Cached blocks are given back when the device is full: reserved ends where the device does, allocated may go on."""
    small = {"gpu_memory_gib": 40}
    roomy = plan_of(LLAMA, STEP | {"micro_batch": 3}, constraints=FSDP).recommended.gpu
    full = plan_of(LLAMA, STEP | {"micro_batch": 3}, constraints=FSDP, pool=small).recommended.gpu
    assert roomy.device_bytes > 40 * 2**30 > full.needed_bytes
    assert full.device_bytes == pytest.approx(40 * 2**30, abs=10)
    assert full.peak_allocated_bytes == roomy.peak_allocated_bytes
    assert full.needed_bytes <= full.device_bytes
    assert float(kept_frac(np.array(10.0), np.array(-5.0), np.array(1.0))) == pytest.approx(0.1)


def test_deepspeed_keeps_muon_momenta_in_the_dtype_gradients_travel_in() -> None:
    """Two bytes for each hidden matrix, eight for Adam's moments of the rest; FSDP2's script keeps both in fp32."""
    training = STEP | {"optimizer": "muon", "grad_accum": 1}
    zero, fsdp = (plan_of(LLAMA, training, gpus=2, constraints=c) for c in (FSDP | {"framework": "deepspeed", "strategy": "zero3"}, FSDP))
    matrices = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
    rest = zero.model.total_params - matrices
    assert term_bytes(zero, "optimizer states") == pytest.approx((2 * matrices + 8 * rest) / 2)
    assert term_bytes(fsdp, "optimizer states") == pytest.approx((4 * matrices + 8 * rest) / 2)


def test_zero1_steps_with_its_part_of_the_gradients() -> None:
    """Whole gradients while micro-steps add up; after the reduction in the last backward an eighth of them is left."""
    zero1 = {"framework": "deepspeed", "strategy": "zero1", **NO_OFFLOAD}
    gpu = plan_of(LLAMA, STEP | {"grad_accum": 4}, constraints=zero1).recommended.gpu
    by_moment = {m.name: sum(t.value for t in m.terms if t.name == "gradients") for m in gpu.moments}
    assert by_moment["loss backward"] == by_moment["end of backward"] == pytest.approx(8 * by_moment["optimizer step"])


def test_bf16_optimizer_steps_beside_the_modules_own_gradients() -> None:
    """Stage 1 with fp32 accumulation: the 16-bit gradients are dropped after the step, the copy that was sent before it."""
    zero1 = {"framework": "deepspeed", "strategy": "zero1", **NO_OFFLOAD}
    gpu = plan_of(LLAMA, STEP | {"grad_accum": 4, "grad_dtype": "fp32"}, constraints=zero1, pool={"gpu_memory_gib": 141}).recommended.gpu
    name = "low-precision gradients beside fp32 accumulation"
    held = {m.name: sum(t.value for t in m.terms if t.name == name) for m in gpu.moments}
    assert held["end of backward"] == 2 * held["optimizer step"] == pytest.approx(4 * 8_030_261_248)


def test_a_bucket_has_its_size_however_little_is_trained() -> None:
    """DeepSpeed allocates it whole; the plan therefore asks for no larger one than an adapter fills, 10M elements at least."""
    constraints = FSDP | {"framework": "deepspeed", "strategy": "zero3", "shard_group_size": 8}
    small = plan_of(LLAMA, STEP | {"adapter": {"kind": "lora", "rank": 1}}, constraints=constraints).recommended
    large = plan_of(LLAMA, STEP | {"adapter": {"kind": "lora", "rank": 16}}, constraints=constraints).recommended
    assert small.settings.reduce_bucket_numel == 10_000_000
    assert 10_000_000 <= large.settings.reduce_bucket_numel <= 41_943_040
    held = {t.value for t in small.gpu.moments[0].terms if t.name == "reduce bucket"}
    assert held == {2.0 * 10_000_000}


def test_zero2_makes_room_for_its_part_when_backward_begins() -> None:
    """The last rank's part begins with the head; on 64 ranks another one holds whole the embedding that four of them share."""
    zero2 = {"framework": "deepspeed", "strategy": "zero2", **NO_OFFLOAD}
    gpu = plan_of(LLAMA, STEP | {"grad_accum": 1}, gpus=8, nodes=8, constraints=zero2).recommended.gpu
    held = {m.name: {t.name: t.value for t in m.terms} for m in gpu.moments}
    part = 8_030_261_248 / 64
    for moment in ("backward of the last block", "end of backward", "optimizer step"):
        assert held[moment]["gradients"] == pytest.approx(2 * part, rel=1e-6)
        cut = held[moment]["gradients of tensors cut by a partition"]
        assert 2 * (128256 * 4096 - part) < cut < 2 * (128256 * 4096 + 2 * 14336 * 4096)
    assert "gradients of tensors cut by a partition" not in held["end of forward"]


def test_expandable_segments_reserve_less() -> None:
    """With expandable segments the reserved total lies between the live tensors and the default allocator's."""
    for constraints in (FSDP, {"framework": "ddp", **NO_OFFLOAD}):
        gpu = plan_of(LLAMA, STEP | {"adapter": {"kind": "lora"}}, constraints=constraints).recommended.gpu
        assert gpu.peak_allocated_bytes < gpu.expandable_bytes < gpu.peak_reserved_bytes


@pytest.mark.parametrize("kind", ["full", "lora", "qlora"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_every_situation_has_an_interval_around_its_prediction(kind: str, gpus: int) -> None:
    """What is trained, and whether it is gathered, choose the interval; the prediction lies in it."""
    adapter = None if kind == "full" else {"kind": kind}
    training = STEP | {"adapter": adapter}
    strategy = {"framework": "deepspeed", "strategy": "zero3"} if gpus > 1 else {"framework": "ddp", "strategy": "ddp"}
    evaluation = evaluate_request(LLAMA, training, gpus=gpus, constraints=strategy | NO_OFFLOAD)
    low, high = peak_ratios(evaluation.setup, evaluation.columns)
    ends = evaluation.setup.rates.peak_ratio[situation_of(evaluation.setup, gathered=gpus > 1)]
    assert (low.min(), high.max()) == (min(1.0, ends[0]), max(1.0, ends[1]))
    assert np.all(low <= 1) and np.all(high >= 1) and np.all(low > 0.3)
    gpu = plan_of(LLAMA, training, gpus=gpus, constraints=strategy | NO_OFFLOAD).recommended.gpu
    assert gpu.interval_90_bytes[0] <= gpu.peak_allocated_bytes <= gpu.peak_reserved_bytes <= gpu.interval_90_bytes[1]


def test_all_situations_are_fitted() -> None:
    """make fit found public rows of all six situations."""
    assert set(fitted_rates().peak_ratio) == {f"{kind} {how}" for kind in ("full", "lora", "qlora") for how in ("whole", "gathered")}


def test_probability_falls_with_what_is_needed_and_agrees_with_the_safe_size() -> None:
    """A run whose safe size is the capacity fits with a probability of 80 %."""
    chances = [fit_probability(needed, 80.0, 0.8, 1.3) for needed in (40.0, 60.0, 80.0, 90.0, 120.0)]
    assert chances == sorted(chances, reverse=True)
    assert chances[2] == pytest.approx(0.5)
    capacity = float(safe_bytes(np.array(60.0), np.array(1.3)))
    assert fit_probability(60.0, capacity, 0.8, 1.3) == pytest.approx(0.8, abs=1e-3)


def test_a_verdict_is_tight_where_the_interval_reaches_past_the_device() -> None:
    """A plan that needs a little less than the device has is tight, one that needs half of it fits."""
    needed = plan_of(LLAMA, STEP, constraints=FSDP).recommended.gpu.needed_bytes / 2**30
    verdicts = [
        plan_of(LLAMA, STEP, constraints=FSDP, pool={"gpu_memory_gib": round(needed * room, 2)}).verdict for room in (2.0, 1.08, 0.9)
    ]
    assert verdicts == ["fits", "tight", "does_not_fit"]


def test_head_width_follows_from_the_total() -> None:
    """Qwen3-32B's heads are 128 wide, not 5,120 / 64: only so do its tensors add up; a total that fits h / a keeps it."""
    told = plan_of({"shape": QWEN3_32B | {"total_params": 32_762_123_264}}, STEP)
    assert any("head_dim was not given; it is taken as 128" in w.message for w in told.warnings)
    untold = plan_of({"shape": QWEN3_32B}, STEP)
    llama = plan_of({"shape": LLAMA["shape"] | {"total_params": 8_030_261_248}}, STEP)
    given = plan_of({"shape": QWEN3_32B | {"head_dim": 80, "total_params": 32_762_123_264}}, STEP)
    assert not any("head_dim was not given" in w.message for plan in (untold, llama, given) for w in plan.warnings)
    # Heads that do not divide the width are no contradiction where the total says how wide they are.
    odd = QWEN3_32B | {"hidden_size": 5200}
    total = architecture_from_shape(Shape(**odd, head_dim=128))
    assert plan_of({"shape": odd | {"num_heads": 64, "total_params": total_params(total)}}, STEP).model.total_params == total_params(total)


def test_gpt_style_code_takes_the_loss_in_sixteen_bits() -> None:
    """Given by dimensions only, a plain feed-forward means three 16-bit copies of the logits, a gated one three fp32 copies."""
    plain = LLAMA["shape"] | {"gated_mlp": False}
    training = STEP | {"activation_checkpointing": "full", "micro_batch": 4}
    logits = [term_bytes(plan_of({"shape": shape}, training, constraints=FSDP), "logits and loss") for shape in (plain, LLAMA["shape"])]
    assert logits == [6 * 4 * 4096 * 128256, 12 * 4 * 4096 * 128256]


def test_stage3_offloads_on_a_single_rank_too() -> None:
    """One rank under stage 3 with offload keeps neither gradients nor step buffers of the whole model on the GPU."""
    constraints = {"framework": "deepspeed", "strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    plan = plan_of(LLAMA, STEP, gpus=1, constraints=constraints)
    assert term_bytes(plan, "gradients") == 0
    assert term_bytes(plan, "optimizer step buffers") == 0
    assert term_bytes(plan, "parameters kept for reuse and gathered ahead") > 0
    assert plan.recommended.gpu.peak_allocated_bytes < 2 * 8_030_261_248


def test_sequence_parallel_exchange_and_tiled_feed_forward() -> None:
    """Sequence parallelism adds copies around its all-to-all; a tiled feed-forward leaves attention as the largest operation."""
    zero3 = {"framework": "deepspeed", "strategy": "zero3", **NO_OFFLOAD}
    training = {"seq_len": 131072, "micro_batch": 1, "activation_checkpointing": "full", "fused_loss": True}
    name = "copies around the sequence exchange"
    split = plan_of(LLAMA, training, constraints=zero3 | {"sequence_parallel": 8})
    assert term_bytes(split, name) == 131072 / 8 * 2 * (3 * 4096 + 2 * 1024)
    assert term_bytes(plan_of(LLAMA, training, constraints=zero3 | {"sequence_parallel": 1}), name) == 0
    working = [
        term_bytes(
            plan_of(LLAMA, training | {"tiled_mlp": tiled}, constraints=zero3 | {"sequence_parallel": 8}), "working set of one block"
        )
        for tiled in (False, True)
    ]
    assert working[1] < 0.7 * working[0]


def test_inputs_of_frozen_fsdp_units_are_held_to_the_end_of_backward() -> None:
    """With adapters under FSDP and full checkpointing two more copies of the block inputs exist when backward ends."""
    lora = STEP | {"adapter": {"kind": "lora"}, "micro_batch": 8}
    name = "block inputs held until backward ends"
    held = term_bytes(plan_of(LLAMA, lora, constraints=FSDP), name)
    assert held == pytest.approx(2 * 8 * 4096 * 2 * 4096 * 32)
    assert term_bytes(plan_of(LLAMA, STEP | {"micro_batch": 8}, constraints=FSDP), name) == 0
    assert term_bytes(plan_of(LLAMA, lora, constraints={"framework": "ddp", **NO_OFFLOAD}), name) == 0


def test_quantised_bases_unpack_one_layer_and_keep_the_rest_in_sixteen_bits() -> None:
    """NF4 takes 0.516 bytes a dense weight, embeddings and head two; one layer is unpacked for its product."""
    ddp = {"framework": "ddp", **NO_OFFLOAD}
    four = plan_of(LLAMA, STEP | {"adapter": {"kind": "qlora"}}, gpus=1, constraints=ddp)
    dense = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
    rest = 8_030_261_248 - dense
    assert term_bytes(four, "frozen parameters") == pytest.approx(dense * (4 + 8 / 64 + 32 / 16384) / 8 + rest * 2, rel=1e-6)
    assert term_bytes(four, "dequantised layer") == 2 * 4096 * 14336
    eight = plan_of(LLAMA, STEP | {"adapter": {"kind": "qlora", "base_bits": 8}}, gpus=1, constraints=ddp)
    assert term_bytes(eight, "dequantised layer") == 0


def test_an_eight_bit_base_keeps_the_inputs_of_its_layers() -> None:
    """Without checkpointing an 8-bit base keeps the feed-forward's product and the norms' outputs, which a 4-bit one frees."""
    ddp = {"framework": "ddp", **NO_OFFLOAD}
    kept = [
        term_bytes(
            plan_of(
                LLAMA, {"seq_len": 2048, "micro_batch": 1, "activation_checkpointing": "none",
                        "adapter": {"kind": "qlora", "base_bits": bits, "targets": ["q_proj", "v_proj"], "dropout": 0.1}},
                gpus=1, constraints=ddp,
            ),
            "saved activations",
        )
        for bits in (4, 8)
    ]  # fmt: skip
    # Of each block: the two norms' outputs and the product, 2·(4096 + 4096 + 14336) bytes a token.
    assert kept[1] - kept[0] == pytest.approx(32 * 2048 * 2 * (2 * 4096 + 14336))


def test_selective_checkpointing_does_not_keep_grouped_products() -> None:
    """Routed experts run as one grouped product, which is not among the matrix products the policy keeps."""
    moe = {"shape": LLAMA["shape"] | {"num_experts": 8, "experts_per_token": 2}}
    training = {"seq_len": 2048, "micro_batch": 1, "activation_checkpointing": "selective"}
    dense, routed = (term_bytes(plan_of(model, training, constraints=FSDP), "saved activations") for model in (LLAMA, moe))
    assert dense - routed == pytest.approx(32 * 2048 * 2 * 14336)


def test_an_assumed_host_is_doubted_not_refused() -> None:
    """Where host memory was not given, a plan beyond what such machines have is tight; where it was given, it does not fit."""
    offload = {"framework": "fsdp2", "strategy": "fsdp_full", "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    model = {"params": 40e9}
    unknown = plan_of(model, STEP, gpus=2, constraints=offload, pool={"gpu": "rtx-4090", "host_memory_gib": None})
    known = plan_of(model, STEP, gpus=2, constraints=offload, pool={"gpu": "rtx-4090", "host_memory_gib": 128})
    assert (unknown.verdict, known.verdict) == ("tight", "does_not_fit")
    assert any(w.code == "host_tight" and "assumed" in w.message for w in unknown.warnings)
