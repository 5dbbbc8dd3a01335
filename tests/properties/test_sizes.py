"""Bucket and gather-ahead sizes of the recommended plan: of all that were tried, none is better."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.domain.memory.peak import evaluate_memory
from app.domain.search.evaluate import Evaluation, evaluate, evaluate_candidates, judge, with_best_sizes
from app.domain.search.sizes import ALIKE_FRAC, LADDER, USUAL_SIZES, Sized, best_sizes
from app.domain.search.space import build_space
from app.domain.speed.step import evaluate_speed
from tests.planning import plan_of, question_of

LLAMA: dict[str, Any] = {
    "shape": {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 14336, "vocab_size": 128256}
}
TRAINING = {"seq_len": 2048, "micro_batch": 1, "grad_accum": 2, "activation_checkpointing": "full", "activation_offload": False}
STATES = ("optimizer_states", "gradients")
PLAIN = {"framework": "deepspeed", "offload_optimizer": "none", "offload_parameters": "none"}


def sized(strategy: str, **rest: Any) -> Evaluation:
    """Both candidates of a pinned strategy, with every size."""
    question = question_of(LLAMA, TRAINING, constraints=PLAIN | {"strategy": strategy}, **rest)
    setup = replace(question.setup, pool=question.pools[0])
    space = build_space(setup, question.constraints)
    return evaluate_candidates(setup, question.constraints, space, np.arange(len(space)), again=len(space))


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_no_other_sizes_are_better(strategy: str) -> None:
    """A plain loop over the ladder, each step evaluated alone, finds nothing faster of the same class."""
    found = sized(strategy, nodes=2)
    chosen = with_best_sizes(found, 0)
    for bucket, (prefetch, reuse) in LADDER:
        columns = found.columns.take(np.array([0]))
        names = {"bucket": bucket, "prefetch": prefetch, "reuse": reuse}
        columns = replace(columns, **{name: np.array([size]) for name, size in names.items()})
        memory = evaluate_memory(found.setup, found.numbers, columns)
        speed = evaluate_speed(found.setup, found.numbers, columns, memory.share)
        if bool(judge(found.setup, question_of(LLAMA, TRAINING).constraints, columns, memory).safe[0]):
            assert found.speed.step_s[chosen] <= float(speed.step_s[0]) * (1 + ALIKE_FRAC)


def test_the_plan_is_the_chosen_step_and_says_its_sizes() -> None:
    """Settings, memory and time of the recommended plan are those of the chosen sizes, not of the searched ones."""
    found = sized("zero3")
    chosen = with_best_sizes(found, 0)
    plan = plan_of(LLAMA, TRAINING, constraints=PLAIN | {"strategy": "zero3"})
    assert chosen >= found.sized.shown
    assert plan.recommended.settings.reduce_bucket_numel == int(found.columns.bucket[chosen])
    assert plan.recommended.settings.max_reuse_distance_numel == int(found.columns.reuse[chosen])
    assert plan.recommended.time.step_s == float(found.speed.step_s[chosen])
    assert plan.candidates == found.sized.shown
    assert [rung.chosen for rung in plan.ladder] == [True]
    assert plan.ladder[0].step_s == plan.recommended.time.step_s


def test_short_memory_takes_smaller_sizes() -> None:
    """Where only small buffers fit, the same strategy is planned with them."""
    roomy = plan_of(LLAMA, TRAINING, constraints=PLAIN | {"strategy": "zero3"}).recommended
    need = roomy.gpu.device_bytes / 2**30 - 2.5
    pool = {"gpu_memory_gib": need}
    short = plan_of(LLAMA, TRAINING, constraints=PLAIN | {"strategy": "zero3"}, pool=pool).recommended
    assert short.gpu.device_bytes < roomy.gpu.device_bytes
    assert short.settings.max_reuse_distance_numel < roomy.settings.max_reuse_distance_numel


def test_sizes_are_left_alone_where_there_are_none() -> None:
    """FSDP2 moves blocks, one rank reduces nothing, and an evaluation of every candidate has no second entries."""
    question = question_of(LLAMA, TRAINING, constraints={"strategy": "fsdp_full"})
    setup = replace(question.setup, pool=question.pools[0])
    space = build_space(setup, question.constraints)
    fsdp = evaluate_candidates(setup, question.constraints, space, np.arange(len(space)), again=1)
    assert len(fsdp.columns) == fsdp.sized.shown == len(space)
    assert with_best_sizes(fsdp, 0) == 0
    assert with_best_sizes(evaluate(setup, question.constraints), 0) == 0


def test_entries_are_where_they_are_said_to_be() -> None:
    """Every candidate's entry with DeepSpeed's own sizes, and the steps of its ladder, hold that candidate with these sizes."""
    found = sized("zero2", nodes=2)
    for candidate in range(found.sized.again):
        usual = found.sized.usual(candidate)
        assert usual is not None
        assert {name: int(getattr(found.columns, name)[usual]) for name in USUAL_SIZES} == USUAL_SIZES
        assert int(found.columns.overlap_comm[usual]) == 0
        places = found.sized.ladder(candidate)
        assert [int(found.columns.bucket[place]) for place in places] == [bucket for bucket, _ in LADDER]
        assert all(found.sized.candidate(int(place)) == candidate for place in places)
        assert all(int(found.columns.micro_batch[place]) == int(found.columns.micro_batch[candidate]) for place in places)


OPEN = {"framework": "deepspeed", "strategy": "zero3"}
LARGE: dict[str, Any] = {"preset": "llama-3.1-70b"}


def test_an_offloaded_optimizer_fills_the_room_that_is_left() -> None:
    """With offload left open, whole sub-groups stay on the GPU: more memory there, less on the host, and a faster step."""
    training = {"seq_len": 4096, "global_batch": 128}
    partly = plan_of(LARGE, training, constraints=OPEN).recommended
    pinned = {"offload_optimizer": "cpu", "offload_parameters": partly.settings.offload_parameters}
    fixed = {"micro_batch": partly.settings.micro_batch, "activation_checkpointing": partly.settings.activation_checkpointing}
    whole = plan_of(LARGE, training | fixed | {"activation_offload": False}, constraints=OPEN | pinned).recommended
    kept = 1 - partly.settings.offload_optimizer_ratio
    assert 0 < kept < 1
    assert whole.settings.offload_optimizer_ratio == 1
    assert partly.time.step_s < whole.time.step_s
    assert partly.gpu.device_bytes > whole.gpu.device_bytes
    states = [sum(t.value for t in c.host.terms if t.name == "optimizer states on the host") for c in (partly, whole)]
    # Master, gradient and moments are 16 of the 18 bytes a parameter; the flat gradients stay on the host.
    assert states[0] / states[1] == pytest.approx(1 - kept * 16 / 18)
    shard = 70_553_706_496 / 8
    sub_groups = math.ceil(shard / partly.settings.sub_group_numel)
    assert int(kept * sub_groups) / sub_groups == pytest.approx(kept, abs=1 / sub_groups)


def test_what_stays_of_an_offloaded_optimizer_is_on_the_gpu() -> None:
    """Masters, gradients and moments that leave the host are counted on the GPU, parameter by parameter."""
    question = question_of(LLAMA, TRAINING, constraints={"framework": "deepspeed", "strategy": "zero3"})
    setup = replace(question.setup, pool=question.pools[0])
    space = build_space(setup, question.constraints)
    offloaded = int(np.flatnonzero(evaluate(setup, question.constraints).columns.offload_optimizer == 1)[0])
    found = evaluate_candidates(setup, question.constraints, space, np.array([offloaded]), again=1)
    assert len(found.sized.kept_fracs) == 8
    shard = found.numbers.trainable / 8
    steps = found.sized.ladder(0).reshape(len(found.sized.kept_fracs), len(LADDER))
    held = [sum(float(line.value[places[0]]) for line in found.memory.gpu.lines if line.category in STATES) for places in steps]
    for kept, there in zip(found.sized.kept_fracs, held, strict=True):
        assert there - held[0] == pytest.approx(16 * shard * kept)


def test_the_smallest_of_those_alike_is_taken() -> None:
    """Class first, then time, then memory; where nothing fits, memory alone."""
    places, step_s = np.arange(4), np.array([1.0, 0.9, 0.9005, 0.5])
    needed, classes = np.array([5.0, 9.0, 7.0, 1.0]), np.array([2, 2, 2, 1])
    assert best_sizes(places, step_s, needed, classes) == 2
    assert best_sizes(places, step_s, needed, 0 * classes) == 3
    assert Sized(3).usual(0) is None
    assert len(Sized(3).ladder(1)) == 0
