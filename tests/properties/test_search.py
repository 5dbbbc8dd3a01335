"""The search leaves nothing out, keeps the batch exact, and says why it passed something over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.domain.errors import InvalidRequestError
from app.domain.ledger import SPLIT_BY_SEQUENCE
from app.domain.memory.peak import evaluate_memory
from app.domain.parallel.strategy import STRATEGIES
from app.domain.search.objective import choose
from app.domain.speed.step import evaluate_speed
from tests.planning import evaluate_request, plan_of, question_of

LLAMA: dict[str, Any] = {
    "shape": {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 14336, "vocab_size": 128256}
}


def test_columns_equal_a_plain_loop() -> None:
    """Evaluating the table at once equals evaluating each candidate alone, number by number."""
    table = evaluate_request(LLAMA, {"seq_len": 2048, "global_batch": 64}, nodes=2)
    for index in range(0, len(table.columns), 7):
        one = table.columns.take(np.array([index]))
        memory = evaluate_memory(table.setup, table.numbers, one)
        speed = evaluate_speed(table.setup, table.numbers, one, memory.share)
        assert memory.device[0] == table.memory.device[index]
        assert memory.host_bytes[0] == table.memory.host_bytes[index]
        assert speed.step_s[0] == pytest.approx(table.speed.step_s[index], rel=1e-12)


def test_choice_equals_brute_force() -> None:
    """The recommended candidate is the simplest within 5 % of the fastest, found by looking at each in turn."""
    table = evaluate_request(LLAMA, {"seq_len": 4096})
    written = table.table().written
    safe = [i for i in range(len(table.columns)) if table.safe[i] and written[i]]
    fastest = max(table.tokens_per_s[i] for i in safe)
    near = [i for i in safe if table.tokens_per_s[i] >= 0.95 * fastest]
    expected = min(near, key=lambda i: (table.complexity[i], -table.tokens_per_s[i], table.memory.device[i]))
    assert choose(table.table(), "throughput") == expected


@pytest.mark.parametrize(("gpus", "nodes", "batch"), [(8, 1, 64), (8, 4, 96), (6, 1, 36)])
def test_global_batch_is_kept_exactly(gpus: int, nodes: int, batch: int) -> None:
    """Every candidate and the recommended plan multiply to the global batch that was given."""
    table = evaluate_request(LLAMA, {"seq_len": 1024, "global_batch": batch}, gpus=gpus, nodes=nodes)
    c = table.columns
    assert np.all(c.micro_batch * c.grad_accum * c.dp == batch)
    assert plan_of(LLAMA, {"seq_len": 1024, "global_batch": batch}, gpus=gpus, nodes=nodes).recommended.settings.global_batch == batch


def test_batch_that_does_not_divide_is_refused_with_the_arithmetic() -> None:
    """A global batch that is no multiple of the ranks names the field, the ranks and the nearest batches."""
    with pytest.raises(InvalidRequestError) as refused:
        plan_of(LLAMA, {"seq_len": 1024, "global_batch": 30})
    assert refused.value.errors[0].loc == ("training", "global_batch")
    assert "24 or 32" in refused.value.detail


def test_rejections_and_candidates_are_counted() -> None:
    """Feasible and memory-rejected candidates add up to all of them, and rules report what they left out."""
    plan = plan_of(LLAMA, {"seq_len": 8192})
    over = sum(r.count for r in plan.rejected if "needs more" in r.reason)
    assert plan.feasible + over == plan.candidates
    assert any("no offload" in r.reason for r in plan.rejected)


def test_every_rung_has_a_reason_or_is_chosen() -> None:
    """The ladder has one chosen rung, and a reason on every other."""
    ladder = plan_of(LLAMA, {"seq_len": 8192}).ladder
    assert sum(r.chosen for r in ladder) == 1
    assert all(r.chosen or r.why_not for r in ladder)
    assert [r.label for r in ladder[:4]] == ["DDP", "DeepSpeed stage 0", "DDP with ZeroRedundancyOptimizer", "ZeRO-1"]


def test_alternatives_are_pareto_optimal() -> None:
    """No alternative is beaten by another in both memory and speed."""
    shown = plan_of(LLAMA, {"seq_len": 8192}).alternatives
    for a in shown:
        assert not any(b.gpu.device_bytes < a.gpu.device_bytes and b.time.tokens_per_s > a.time.tokens_per_s for b in shown)


def test_small_model_takes_plain_data_parallelism() -> None:
    """Where DDP fits and is within 5 % of the best it is recommended: not sharding is an answer."""
    plan = plan_of({"params": 2e8}, {"seq_len": 1024})
    assert plan.recommended.settings.strategy == "ddp"


def test_unequal_pools_say_which_to_use() -> None:
    """A slow pool beside a fast one is left out when the job is faster without it, and the answer says so."""
    question = question_of(LLAMA, {"seq_len": 2048})
    from app.services.request import PlanRequest
    from app.services.resolve import resolve

    pools = [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 1}, {"gpu": "v100-sxm2-16gb", "gpus_per_node": 8, "nodes": 1}]
    body = {"model": LLAMA, "training": {"seq_len": 2048}, "cluster": {"pools": pools}}
    from app.domain.search.planner import make_plan

    plan = make_plan(resolve(PlanRequest.model_validate(body)).question)
    said = next(w for w in plan.warnings if w.code == "pools_used")
    assert "Use pool 0 and leave pool 1 out" in said.message
    assert plan.recommended.settings.world_size == question.pools[0].world_size


def test_longest_sequence_is_the_last_that_fits() -> None:
    """The longest sequence fits, and 256 tokens more do not."""
    pins = {"framework": "fsdp2", "strategy": "fsdp_full", "offload_optimizer": "none", "offload_parameters": "none"}
    plan = plan_of(
        LLAMA, {"seq_len": 1024, "micro_batch": 1, "activation_checkpointing": "full"}, constraints=pins, objective="longest_sequence"
    )
    longest = plan.recommended.settings.seq_len
    assert longest > 8192
    assert plan.verdict != "does_not_fit"
    question = question_of(LLAMA, {"seq_len": longest + 256, "micro_batch": 1, "activation_checkpointing": "full"}, constraints=pins)
    from app.domain.search.evaluate import evaluate

    beyond = evaluate(replace(question.setup, pool=question.pools[0]), question.constraints)
    assert not beyond.fits.any()


def test_fewest_gpus_is_minimal() -> None:
    """No smaller number of GPUs holds the model without offload."""
    pins = {"offload_optimizer": "none", "offload_parameters": "none"}
    plan = plan_of(LLAMA, {"seq_len": 2048, "micro_batch": 1}, constraints=pins, objective="fewest_gpus")
    used = plan.recommended.settings.world_size
    assert used in (2, 4)
    fewer = plan_of(LLAMA, {"seq_len": 2048, "micro_batch": 1}, gpus=used // 2, constraints=pins)
    assert fewer.verdict == "does_not_fit" or used == 1


def test_nothing_fits_has_ways_out_that_do() -> None:
    """Where nothing fits the answer is a plan with the shortfall and computed ways out."""
    plan = plan_of(LLAMA, {"seq_len": 8192, "micro_batch": 8, "activation_checkpointing": "none"}, constraints={"strategy": "ddp"})
    assert plan.verdict == "does_not_fit"
    assert plan.shortfall_bytes > 0
    assert any(w.fits for w in plan.ways_out)
    assert not plan.files


def test_fewest_gpus_tries_every_number() -> None:
    """The number is the first of 1, 2, 3, … devices on which a plan of its own fits, powers of two or not."""
    pins = {"offload_optimizer": "none", "offload_parameters": "none"}
    training, pool = {"seq_len": 2048, "micro_batch": 1}, {"gpu_memory_gib": 56}
    plan = plan_of(LLAMA, training, constraints=pins, objective="fewest_gpus", pool=pool)
    fits = [g for g in range(1, 9) if plan_of(LLAMA, training, gpus=g, constraints=pins, pool=pool).verdict != "does_not_fit"]
    assert plan.recommended.settings.world_size == fits[0]
    assert fits[0] & (fits[0] - 1), "the case should need a number that is no power of two"


def test_largest_micro_batch_is_the_last_that_fits() -> None:
    """Without a global batch every size is tried: the largest fits, and one sequence more does not."""
    pins = {"strategy": "zero3", "offload_optimizer": "none", "offload_parameters": "none"}
    training = {"seq_len": 2048, "activation_checkpointing": "full"}
    plan = plan_of(LLAMA, training, constraints=pins, objective="largest_micro_batch")
    size = plan.recommended.settings.micro_batch
    assert plan.verdict == "fits"
    assert size & (size - 1), "the case should have an answer that is no power of two"
    assert plan_of(LLAMA, training | {"micro_batch": size + 1}, constraints=pins).verdict != "fits"


def test_a_fused_loss_on_tensor_ranks_is_not_deepspeeds_script() -> None:
    """No script is written for that pair, so a plan with one comes first; without the fused loss both frameworks have one."""
    for fused in (False, True):
        evaluation = evaluate_request(LLAMA, {"seq_len": 8192, "fused_loss": fused}, nodes=2)
        table, room = evaluation.table(), evaluation.verdicts.script_fits
        tensor = table.tp > 1
        frameworks = np.array([STRATEGIES[row].framework for row in table.row])
        assert table.written[tensor & room & (frameworks == "fsdp2") & (table.pp * table.sp * table.ep == 1)].all()
        assert table.written[tensor & (frameworks == "deepspeed")].any() is np.bool_(not fused)


@pytest.mark.parametrize("objective", ["throughput", "largest_micro_batch", "longest_sequence"])
@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "a100-sxm4-40gb"])
def test_a_recommended_script_fits_as_well_as_its_plan(objective: str, gpu: str) -> None:
    """fsdp2_train.py keeps whole on every tensor rank what the figures split: without room for that, another plan is recommended."""
    for seq_len in (8192, 16384):
        plan = plan_of(LLAMA, {"seq_len": seq_len}, pool={"gpu": gpu}, objective=objective)
        said = {warning.code: warning.severity for warning in plan.warnings}
        assert said.get("tensor_script_keeps_more") != "warning", plan.summary


def test_a_script_needs_what_the_figures_split_over_tensor_ranks_once_more_for_each() -> None:
    """By the lines of the ledger, one candidate at a time; nothing more without tensor ranks or under DeepSpeed."""
    evaluation = evaluate_request(LLAMA, {"seq_len": 8192})
    more, lines = evaluation.memory.script_more, evaluation.memory.gpu.lines
    split = np.sum([line.value for line in lines if line.card.title in SPLIT_BY_SEQUENCE], axis=0)
    fsdp2 = np.array([STRATEGIES[row].framework == "fsdp2" for row in evaluation.columns.row])
    assert np.allclose(more, np.where(fsdp2, split * (evaluation.columns.tp - 1), 0))
    assert (more > 0).any()
    kept = evaluation.over_bytes + more <= 0
    assert np.array_equal(evaluation.verdicts.script_fits, kept | (more == 0))
