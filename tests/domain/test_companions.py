"""Other models on the same GPUs: summed per moment, decided together, timed one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.domain.errors import InvalidRequestError
from app.domain.plan import Plan
from app.domain.search.constraints import Constraints
from app.domain.search.evaluate import evaluate_candidates
from app.domain.search.scan import scan
from app.domain.search.space import build_space
from app.services.diagnose.gpu import moment_of
from app.services.plan import answer
from tests.planning import plan_of, question_of, request_of, term_bytes

SMALL: dict[str, Any] = {
    "shape": {"num_layers": 8, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 4, "ffn_hidden_size": 8192, "vocab_size": 32000}
}
SIX: dict[str, Any] = {"shape": {"num_layers": 2, "hidden_size": 768, "num_heads": 6, "ffn_hidden_size": 1024, "vocab_size": 99}}
LLAMA: dict[str, Any] = {"preset": "llama-3.1-8b"}
PINNED: dict[str, Any] = {"seq_len": 2048, "micro_batch": 2, "grad_accum": 1, "activation_checkpointing": "full"}
NO_OFFLOAD = {"offload_optimizer": "none", "offload_parameters": "none"}


def pinned(strategy: str, *companions: dict[str, Any], model: dict[str, Any] = SMALL, **more: Any) -> Plan:
    """The plan of one pinned configuration."""
    offload = more.pop("offload", NO_OFFLOAD)
    training = PINNED | more.pop("training", {})
    return plan_of(model, training, constraints={"strategy": strategy} | offload, companions=list(companions), **more)


def moments(plan: Plan) -> dict[str, float]:
    """Allocated bytes by moment."""
    return {moment.name: moment.allocated_bytes for moment in plan.recommended.gpu.moments}


CRITIC = {"role": "critic", "model": SMALL, "trains": True, "head": "lm"}
REFERENCE = {"role": "reference", "model": SMALL}


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp_full", "fsdp_grad_op"])
def test_twins_need_the_same_and_each_holds_the_other(strategy: str) -> None:
    """A critic like the actor has the actor's moments, byte for byte, and each of them is the lone one's and what the other keeps."""
    alone, both = moments(pinned(strategy)), moments(pinned(strategy, CRITIC))
    ours = {name: size for name, size in both.items() if not name.startswith("critic: ")}
    assert list(ours) == list(alone)
    assert {name.removeprefix("critic: "): size for name, size in both.items() if name not in ours} == ours
    held = {name: ours[name] - alone[name] for name in ours}
    assert max(held.values()) - min(held.values()) <= 1
    assert 0 < held["optimizer step"] <= alone["optimizer step"]


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp_full"])
def test_the_peak_is_the_largest_moment_of_any_model(strategy: str) -> None:
    """A large frozen model with long sequences peaks itself; the terms shown add up to that moment."""
    teacher = {"role": "teacher", "model": LLAMA, "seq_len": 16384}
    gpu = pinned(strategy, teacher).recommended.gpu
    by_moment = {moment.name: moment.allocated_bytes for moment in gpu.moments}
    assert gpu.peak_moment == max(by_moment, key=lambda name: by_moment[name]) == "teacher: end of forward"
    shown = sum(term.value for term in gpu.terms if term.category != "overhead")
    assert shown == pytest.approx(gpu.peak_allocated_bytes, abs=len(gpu.terms)) == pytest.approx(by_moment[gpu.peak_moment], abs=20)
    assert {"parameters", "teacher: parameters", "teacher: logits of one forward"} <= {term.name for term in gpu.terms}


def test_a_frozen_model_is_whole_where_parameters_are() -> None:
    """P · 2 bytes under ZeRO-2, a rank's part of it under ZeRO-3, none of it on the GPU between forwards where it waits on the host."""
    numel = next(c.total_params for c in pinned("zero2", REFERENCE).companions)
    assert term_bytes(pinned("zero2", REFERENCE), "reference: parameters") == 2 * numel
    assert term_bytes(pinned("zero3", REFERENCE), "reference: parameters") == 2 * numel / 8
    assert term_bytes(pinned("zero3", REFERENCE | {"sharding": "replicated"}), "reference: parameters") == 2 * numel
    waits = pinned("zero2", REFERENCE | {"offload_parameters": "cpu"})
    assert waits.companions[0].held_bytes == 0
    assert moments(waits)["reference: end of forward"] >= 2 * numel
    assert any(t.name == "reference: parameters on the host" and t.value == 8 * 2 * numel for t in waits.recommended.host.terms)


def test_a_step_is_the_sum_of_all_models() -> None:
    """A twin that trains doubles the step; a frozen one adds its forward, tokens times its FLOPs, and no more than half a step."""
    alone, twins, beside = (pinned("zero1", *c).recommended.time for c in ((), (CRITIC,), (REFERENCE,)))
    assert twins.step_s == pytest.approx(2 * alone.step_s, rel=1e-9)
    forward = next(term for term in beside.terms if term.name == "reference: forward")
    assert beside.step_s == pytest.approx(alone.step_s + max(forward.value, beside.compute_s - alone.compute_s), rel=1e-9)
    assert 0.15 < (beside.step_s - alone.step_s) / alone.step_s < 0.5
    assert twins.tokens_per_s == pytest.approx(alone.tokens_per_s / 2, rel=1e-9)


def test_an_engine_holds_its_cache_and_a_context() -> None:
    """Tokens times the keys and values of every layer, whole on each GPU, in a process of its own; generation takes no time here."""
    engine = {"role": "rollout", "model": SMALL, "kv_cache_tokens": 100_000}
    alone, plan = pinned("zero3"), pinned("zero3", engine)
    assert term_bytes(plan, "rollout: cache of keys and values") == 100_000 * 8 * 4 * 2 * 128 * 2
    assert any(t.name == "rollout: CUDA context and kernels" for t in plan.recommended.gpu.terms)
    assert plan.recommended.time.step_s == alone.recommended.time.step_s
    said = next(w for w in plan.warnings if w.code == "companions_counted")
    assert "Generation, which is all the work of rollout," in said.message


def test_a_value_head_has_no_logits() -> None:
    """Critics and reward models give one number a token: the head goes, with its logits and its parameters."""
    reward = pinned("zero2", {"role": "reward", "model": LLAMA})
    judge = pinned("zero2", {"role": "judge", "model": LLAMA})
    assert judge.companions[0].total_params - reward.companions[0].total_params == 128256 * 4096 - 4096
    assert term_bytes(reward, "reward: logits of one forward") == 0
    assert term_bytes(judge, "judge: logits of one forward") == 2 * 2048 * 128256 * 6


@pytest.mark.parametrize(
    ("constraints", "gpus", "nodes"),
    [({}, 8, 1), ({"pipeline_parallel": 2, "strategy": "zero1"}, 4, 2), ({"tensor_parallel": 2, "strategy": "zero3"}, 8, 1)],
)
def test_the_search_decides_with_them(constraints: dict[str, Any], gpus: int, nodes: int) -> None:
    """The scan's figures are those of each candidate evaluated flat, with companions of every kind."""
    beside = [CRITIC, REFERENCE | {"offload_parameters": "cpu"}, {"role": "rollout", "model": LLAMA, "kv_cache_tokens": 9000}]
    question = question_of(SMALL, {"seq_len": 2048, "global_batch": 64}, gpus=gpus, nodes=nodes, constraints=constraints, companions=beside)
    setup, pins = question.setup, Constraints(**constraints)
    space = build_space(setup, pins)
    table, some = scan(setup, pins, space), np.arange(0, len(space), max(1, len(space) // 300))
    flat = evaluate_candidates(setup, pins, space, some)
    assert table.device_bytes[some][np.isfinite(table.device_bytes[some])] == pytest.approx(
        flat.memory.device[np.isfinite(table.device_bytes[some])], rel=1e-12
    )
    assert np.array_equal(table.fits[some], flat.fits)
    timed = table.fits[some]
    assert table.tokens_per_s[some][timed] == pytest.approx(flat.tokens_per_s[timed], rel=1e-12)


def test_what_fits_alone_may_not_fit_together() -> None:
    """Alone the plainest plan wins; with three more 8B models parameters are divided, and pinned whole they do not fit."""
    beside = [{"role": "critic", "model": LLAMA, "trains": True}, *({"role": r, "model": LLAMA} for r in ("reference", "reward"))]
    alone, together = plan_of(LLAMA, {"seq_len": 2048}), plan_of(LLAMA, {"seq_len": 2048}, companions=beside)
    assert alone.recommended.settings.strategy in ("ddp", "zero1", "zero2")
    assert together.verdict != "does_not_fit"
    assert together.recommended.settings.strategy not in ("ddp", "zero1", "zero2")
    whole = plan_of(LLAMA, {"seq_len": 2048}, constraints={"strategy": "zero1"} | NO_OFFLOAD, companions=beside)
    assert whole.verdict == "does_not_fit"
    assert any("on the host" in way.label for way in whole.ways_out)


@pytest.mark.parametrize(
    ("companions", "loc", "said"),
    [
        ([REFERENCE, REFERENCE], ("companions",), "given 2 times"),
        ([REFERENCE | {"trains": True, "kv_cache_tokens": 5}], ("companions", 0), "for frozen models"),
        ([REFERENCE | {"trains": True, "sharding": "replicated"}], ("companions", 0), "for frozen models"),
        ([REFERENCE | {"kv_cache_tokens": 5, "offload_parameters": "cpu"}], ("companions", 0), "keeps its weights on the GPU"),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(companions: list[dict[str, Any]], loc: tuple[Any, ...], said: str) -> None:
    """By the shape of the request."""
    with pytest.raises(ValueError, match=said) as raised:
        request_of(SMALL, PINNED, companions=companions)
    assert raised.value.errors()[0]["loc"] == loc  # type: ignore[attr-defined]


def test_names_that_are_unknown_are_refused_at_their_companion() -> None:
    """The field is the companion's own, not that of the trained model."""
    with pytest.raises(InvalidRequestError) as raised:
        answer(request_of(SMALL, PINNED, companions=[REFERENCE, CRITIC | {"model": {"preset": "no-such-model"}}]))
    assert raised.value.errors[0].loc == ("companions", 1, "model", "preset")
    with pytest.raises(InvalidRequestError) as raised:
        answer(
            request_of(SMALL, PINNED, constraints={"tensor_parallel": 4, "strategy": "zero3"}, companions=[{"role": "other", "model": SIX}])
        )
    assert "other: tensor_parallel 4 does not divide num_heads 6" in raised.value.detail
    encoder = {"preset": "bert-base"}
    with pytest.raises(InvalidRequestError) as raised:
        answer(request_of(SMALL, PINNED, companions=[{"role": "rollout", "model": encoder, "kv_cache_tokens": 10}]))
    assert raised.value.errors[0].loc == ("companions", 0, "kv_cache_tokens")


def test_the_answer_names_them_only_where_there_are_any() -> None:
    """The document of one model is as it was; with others it lists them, and says that the files do not have them."""
    alone = answer(request_of(SMALL, PINNED)).document()
    assert "companions" not in alone
    assert "companions" not in alone["request"]
    both = answer(request_of(SMALL, PINNED, companions=[REFERENCE])).document()
    assert [c["role"] for c in both["companions"]] == ["reference"]
    assert both["request"]["companions"][0]["role"] == "reference"
    assert "companions_not_in_files" in {w["code"] for w in both["warnings"]}


def test_a_diagnosis_knows_the_moments_of_every_model() -> None:
    """Their labels bear roles, and mean the same moments."""
    plan = pinned("zero3", CRITIC, REFERENCE)
    found = {moment.name: moment_of(moment.name) for moment in plan.recommended.gpu.moments}
    assert found["critic: loss backward"] == found["loss backward"] == "loss"
    assert found["reference: end of forward"] == "forward"
