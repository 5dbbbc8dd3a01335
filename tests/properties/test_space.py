"""The space is complete, within its bound, and scanning it equals looking at each candidate by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.domain.memory.peak import evaluate_memory
from app.domain.search import space as space_module
from app.domain.search.evaluate import Table, evaluate_candidates, judge
from app.domain.search.objective import choose, pareto
from app.domain.search.planner import Question
from app.domain.search.scan import scan
from app.domain.search.space import build_space
from app.domain.speed.step import evaluate_speed
from app.emit.launch import train_script
from app.services.plan import answer
from tests.emit.jobs import make_job
from tests.planning import plan_of, question_of, request_of

LLAMA: dict[str, Any] = {
    "shape": {"num_layers": 8, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 4, "ffn_hidden_size": 8192, "vocab_size": 128256}
}
MIXTURE: dict[str, Any] = {"shape": LLAMA["shape"] | {"num_experts": 8, "experts_per_token": 2, "ffn_hidden_size": 4096}}
LARGE: dict[str, Any] = {"preset": "llama-3.1-70b"}
CASES = {
    "one node": question_of(LLAMA, {"seq_len": 4096, "global_batch": 32}),
    "free batches": question_of(LLAMA, {"seq_len": 2048, "fused_loss": True}, nodes=2),
    "mixture": question_of(MIXTURE, {"seq_len": 2048, "global_batch": 16}, nodes=2),
    "adapter": question_of(LLAMA, {"seq_len": 2048, "global_batch": 16, "adapter": {"kind": "qlora"}}),
    "pipelines": question_of(LLAMA, {"seq_len": 2048, "global_batch": 24, "precision": "fp16"}, gpus=2, nodes=4, pool={"nvme_gb": 1000}),
    "slow links": question_of(LARGE, {"seq_len": 4096, "global_batch": 4}, gpus=4, pool={"gpu": "l40s", "intra_node": "pcie4"}),
}


@pytest.mark.parametrize("name", CASES)
def test_scan_equals_a_plain_loop(name: str) -> None:
    """Memory, time and verdict of the scan equal those of each candidate evaluated alone, and so does the recommended one."""
    question = CASES[name]
    setup, constraints = question.setup, question.constraints
    space = build_space(setup, constraints)
    table = scan(setup, constraints, space, prune=False)
    loop = _loop(question, table, step=max(1, len(table) // 400))
    for index, (device, over, fits, tokens_per_s) in loop.items():
        assert table.device_bytes[index] == pytest.approx(device, rel=1e-12)
        assert table.over_bytes[index] == pytest.approx(over, abs=1e-3)
        assert bool(table.fits[index]) is fits
        if fits:
            assert table.tokens_per_s[index] == pytest.approx(tokens_per_s, rel=1e-12)
    whole = evaluate_candidates(setup, constraints, space, np.arange(len(space))).table()
    for objective in ("throughput", "simplest", "largest_micro_batch"):
        assert choose(table, objective) == choose(whole, objective)
    assert np.array_equal(table.fits, whole.fits)
    assert np.array_equal(table.safe, whole.safe)


def _loop(question: Question, table: Table, step: int) -> dict[int, tuple[float, float, bool, float]]:
    """Candidates one at a time: device bytes, overrun, verdict and speed of every ``step``-th."""
    setup, out = question.setup, {}
    space = build_space(setup, question.constraints)
    for index in range(0, len(table), step):
        one = evaluate_candidates(setup, question.constraints, space, np.array([index]))
        memory = evaluate_memory(setup, setup.numbers, one.columns)
        speed = evaluate_speed(setup, setup.numbers, one.columns, memory.share)
        verdicts = judge(setup, question.constraints, one.columns, memory)
        speed_is = float(speed.tokens_per_step[0] / speed.step_s[0])
        out[index] = float(memory.device[0]), float(verdicts.over_bytes[0]), bool(verdicts.fits[0]), speed_is
    return out


@pytest.mark.parametrize("name", [n for n in CASES if n != "pipelines"])
def test_pruning_changes_nothing(name: str) -> None:
    """With and without passing over what no disk is known for, the same candidates fit and the same ones are shown."""
    question = CASES[name]
    space = build_space(question.setup, question.constraints)
    pruned, whole = (scan(question.setup, question.constraints, space, prune=prune) for prune in (True, False))
    assert np.array_equal(pruned.fits, whole.fits)
    assert np.array_equal(pruned.tokens_per_s, whole.tokens_per_s)
    chosen = choose(whole, "throughput")
    assert choose(pruned, "throughput") == chosen
    if chosen is not None:
        assert pareto(pruned, chosen) == pareto(whole, chosen)
    assert sum(n for r, n in pruned.rejected.items() if "needs more" in r) == sum(n for r, n in whole.rejected.items() if "needs more" in r)


def test_every_candidate_is_there_once() -> None:
    """No two candidates are alike, each mesh multiplies to the devices and each batch to the global one."""
    question = CASES["pipelines"]
    space = build_space(question.setup, question.constraints)
    c = evaluate_candidates(question.setup, question.constraints, space, np.arange(len(space))).columns
    assert np.all(c.dp * c.tp * c.pp * c.sp == question.setup.pool.world_size)
    assert np.all(c.micro_batch * c.grad_accum * c.dp == 24)
    names = ("row", "tp", "pp", "sp", "ep", "group", "hpz", "qwz", "qgz", "offload_optimizer", "offload_parameters", "checkpointing",
             "act_offload", "lean", "micro_batch")  # fmt: skip
    rows = np.stack([getattr(c, name) for name in names])
    assert np.unique(rows, axis=1).shape[1] == len(space)


def test_rules_of_the_mesh() -> None:
    """Pipelines take no ZeRO-2 or 3 and no offload under DeepSpeed, sequence axes are DeepSpeed's, DDP splits nothing, qgZ spans nodes."""
    question = CASES["mixture"]
    space = build_space(question.setup, question.constraints)
    c = evaluate_candidates(question.setup, question.constraints, space, np.arange(len(space))).columns
    piped = (c.pp > 1) & (c.deepspeed > 0)
    assert not np.any(piped & ((c.reduces_each > 0) | (c.offload_optimizer > 0)))
    assert not np.any((c.sp > 1) & (c.deepspeed == 0))
    assert not np.any((c.ddp > 0) & (c.tp * c.pp * c.sp * c.ep > 1))
    assert np.any(c.ep > 1)
    assert np.all(c.zero3[(c.qwz > 0) | (c.qgz > 0)])
    one = CASES["one node"]
    single = build_space(one.setup, one.constraints).structures
    assert not single["qgz"].any()
    assert single["qwz"].any()


def test_a_pinned_strategy_is_taken_at_its_word() -> None:
    """With a strategy pinned, open degrees are 1 and nothing is quantised."""
    question = question_of(LLAMA, {"seq_len": 4096}, nodes=2, constraints={"strategy": "zero3"})
    space = build_space(question.setup, question.constraints)
    assert len(space.meshes) == 1
    assert not space.structures["qwz"].any()


def test_scripts_are_written_for_what_is_preferred() -> None:
    """The axes that are passed over for want of a script are those the emitters write none for."""
    assert train_script(make_job(tensor_parallel=2, dp_shard=4)) is not None
    for axis in ("pipeline_parallel", "sequence_parallel", "expert_parallel"):
        degree: dict[str, Any] = {axis: 2}
        assert train_script(make_job(**degree)) is None
    plan = plan_of(MIXTURE, {"seq_len": 2048, "global_batch": 32}, nodes=2)
    s = plan.recommended.settings
    assert s.pipeline_parallel == s.sequence_parallel == s.expert_parallel == 1


def test_a_batch_smaller_than_the_ranks_is_what_model_parallelism_is_for() -> None:
    """Four sequences on eight GPUs cannot be data-parallel alone: tensor parallelism keeps the batch exactly."""
    plan = answer(request_of(LLAMA, {"seq_len": 2048, "global_batch": 4})).plan
    assert plan.recommended.settings.tensor_parallel > 1
    assert plan.recommended.settings.global_batch == 4
    assert plan.files


def test_a_search_beyond_its_bound_is_narrowed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Axes are narrowed in order until the bound holds, and the warning names what was searched instead."""
    question = CASES["free batches"]
    full = len(build_space(question.setup, question.constraints))
    sizes = []
    for bound in (full - 1, full // 3, full // 8, full // 20):
        monkeypatch.setattr(space_module, "MAX_CANDIDATES", bound)
        narrowed = build_space(question.setup, question.constraints)
        assert len(narrowed) <= bound
        assert narrowed.narrowed == tuple(w.said for w in space_module.WIDTHS[1 : 1 + len(narrowed.narrowed)])
        sizes.append(len(narrowed))
    assert sizes == sorted(sizes, reverse=True)
    said = next(w for w in plan_of(LLAMA, {"seq_len": 2048, "fused_loss": True}, nodes=2).warnings if w.code == "search_narrowed")
    assert "at most 8 micro-batches" in said.message


def test_the_largest_search_stays_within_the_bound() -> None:
    """Many divisors on many devices: what would be too much is narrowed rather than timed out."""
    question = question_of(LARGE, {"seq_len": 5040, "global_batch": 443520 * 2}, gpus=8, nodes=55440)
    space = build_space(question.setup, question.constraints)
    assert 100_000 < len(space) <= space_module.MAX_CANDIDATES
