"""Pins that no framework carries out are refused with the rule that is broken, the arithmetic and a fix that works."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from app.domain.errors import FieldError, InvalidRequestError
from app.domain.parallel.strategy import STRATEGIES
from app.domain.search.constraints import AXES, OFFLOAD_TARGETS, Constraints
from app.domain.search.pinned import strategies_for
from app.domain.search.space import build_space
from tests.planning import plan_of, question_of

LLAMA = {"preset": "llama-3.1-8b"}  # 32 heads, 8 of them for keys and values, 32 layers
MIXTRAL = {"preset": "mixtral-8x7b"}  # 8 experts
FEW_KV = {
    "shape": {
        "num_layers": 2,
        "hidden_size": 768,
        "num_heads": 12,
        "num_kv_heads": 4,
        "head_dim": 64,
        "ffn_hidden_size": 2048,
        "vocab_size": 32000,
    }
}


def allowed(pins: dict[str, Any], *, model: dict[str, Any] = LLAMA, seq_len: int = 8192, gpus: int = 8, nodes: int = 1) -> set[str]:
    """Labels of the strategies that the pins leave."""
    question = question_of(model, {"seq_len": seq_len, "micro_batch": 1}, gpus=gpus, nodes=nodes, constraints=pins)
    return {s.label for s in strategies_for(replace(question.setup, pool=question.pools[0]), question.constraints)[0]}


def refusal(pins: dict[str, Any], **given: Any) -> FieldError:
    """The one thing said to be wrong."""
    with pytest.raises(InvalidRequestError) as caught:
        allowed(pins, **given)
    assert len(caught.value.errors) == 1
    return caught.value.errors[0]


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("shard_group_size", {"strategy": "zero3", "shard_group_size": 4}, {}, "8 ranks are one node", "use 8"),
    ("shard_group_size", {"strategy": "zero3", "shard_group_size": 4}, {"nodes": 2}, "8 GPUs of a node.*not 4", "use 8"),
    ("shard_group_size", {"strategy": "zero3", "shard_group_size": 3}, {"nodes": 2}, r"16 ranks: 16 = 3 × 5 \+ 1", "use 8"),
    ("shard_group_size", {"strategy": "zero3", "shard_group_size": 32}, {"nodes": 2}, "16 is less than 32", "use 8"),
    ("shard_group_size", {"strategy": "zero3", "shard_group_size": 8, "tensor_parallel": 2}, {"nodes": 4}, "tensor parallelism", "open"),
    ("shard_group_size", {"strategy": "zero2", "shard_group_size": 8}, {"nodes": 2}, "ZeRO-2 has no shard group of 8", "open"),
    ("shard_group_size", {"strategy": "hsdp", "shard_group_size": 3}, {}, "8 = 3 × 2 \\+ 2", "use 1, 2, 4, 8"),
    ("pipeline_parallel", {"strategy": "zero2", "pipeline_parallel": 2}, {}, "refuses ZeRO-2 and ZeRO-3", "zero1"),
    ("pipeline_parallel", {"strategy": "zero3", "pipeline_parallel": 2}, {}, "refuses ZeRO-2 and ZeRO-3", "zero1"),
    ("pipeline_parallel", {"pipeline_parallel": 64}, {"nodes": 8}, "exceeds the 32 layers", "use 1, 2, 4, 8, 16, 32"),
    ("sequence_parallel", {"sequence_parallel": 2}, {"seq_len": 8191}, "8191 = 2 × 4095 \\+ 1", "another seq_len"),
    ("sequence_parallel", {"sequence_parallel": 3}, {"seq_len": 9000, "gpus": 6}, "num_heads 32: 32 = 3 × 10 \\+ 2", "use 1, 2,"),
    ("sequence_parallel", {"sequence_parallel": 6}, {"seq_len": 9000, "gpus": 6, "model": FEW_KV}, "num_kv_heads 4", "use 1, 2,"),
    ("tensor_parallel", {"tensor_parallel": 3}, {"gpus": 6}, "num_heads 32", "use 1, 2"),
    ("tensor_parallel", {"tensor_parallel": 16}, {"gpus": 16}, "num_kv_heads 8: 8 is less than 16", "use 1, 2, 4, 8"),
    ("expert_parallel", {"expert_parallel": 3}, {"gpus": 6, "model": MIXTRAL}, "num_experts 8", "use 1, 2"),
    ("expert_parallel", {"expert_parallel": 8}, {"gpus": 4, "model": MIXTRAL}, "the 4 ranks", "use 1, 2, 4"),
    ("offload_optimizer", {"framework": "fsdp2", "offload_optimizer": "nvme"}, {}, "host memory only", "use cpu"),
    ("offload_parameters", {"framework": "fsdp2", "offload_parameters": "nvme"}, {}, "host memory only", "use cpu"),
    ("offload_optimizer", {"framework": "fsdp2", "offload_optimizer": "cpu", "offload_parameters": "none"}, {}, "together", "both"),
    ("offload_parameters", {"framework": "fsdp2", "offload_optimizer": "none", "offload_parameters": "cpu"}, {}, "together", "both"),
    ("offload_parameters", {"strategy": "zero3", "offload_optimizer": "none", "offload_parameters": "cpu"}, {}, "leaves 12", "cpu"),
    ("expert_parallel", {"expert_parallel": 2}, {}, "no experts", "use 1"),
    ("offload_optimizer", {"framework": "ddp", "offload_optimizer": "cpu"}, {}, "DDP has no offload", "zero1"),
    ("offload_parameters", {"framework": "deepspeed", "strategy": "ddp", "offload_parameters": "cpu"}, {}, "stage 0", "zero1"),
]


@pytest.mark.parametrize(("name", "pins", "given", "rule", "fix"), REFUSED)
def test_a_pin_is_refused_with_its_rule_alone(name: str, pins: dict[str, Any], given: dict[str, Any], rule: str, fix: str) -> None:
    """The field, the broken rule with its arithmetic, and a fix; no other rule is mentioned."""
    found = refusal(pins, **given)
    assert found.loc == ("constraints", name)
    assert re.search(rule, found.msg)
    assert fix in found.hint
    assert ";" not in found.msg


@pytest.mark.parametrize(("name", "pins", "given", "rule", "fix"), REFUSED)
def test_every_number_a_fix_names_is_taken(name: str, pins: dict[str, Any], given: dict[str, Any], rule: str, fix: str) -> None:
    """What the hint offers is not refused in its turn."""
    offered = re.match(r"use ((?:\d+(?:, )?)+)", refusal(pins, **given).hint)
    for number in re.findall(r"\d+", offered[1]) if offered else ():
        assert allowed(pins | {name: int(number)}, **given)


ALLOWED: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({"strategy": "zero3", "shard_group_size": 8}, {"nodes": 2}, {"ZeRO-3"}),
    ({"strategy": "zero3", "shard_group_size": 8}, {}, {"ZeRO-3"}),
    ({"shard_group_size": 4}, {}, {"HSDP"}),
    ({"strategy": "ddp", "shard_group_size": 1}, {}, {"DDP", "DeepSpeed stage 0"}),
    ({"framework": "deepspeed", "pipeline_parallel": 2}, {}, {"DeepSpeed stage 0", "ZeRO-1"}),
    ({"strategy": "zero3", "sequence_parallel": 16}, {"nodes": 2}, {"ZeRO-3"}),  # 8 key/value heads, each on two ranks
    ({"strategy": "fsdp_full", "sequence_parallel": 3}, {"seq_len": 9000, "gpus": 6}, {"FSDP2"}),  # context parallelism
    ({"framework": "fsdp2", "offload_optimizer": "cpu"}, {}, {"FSDP2", "FSDP2 without resharding", "HSDP"}),
    ({"offload_optimizer": "cpu", "offload_parameters": "none"}, {}, {"ZeRO-1", "ZeRO-2", "ZeRO-3"}),
    ({"strategy": "ddp", "offload_optimizer": "none", "offload_parameters": "none"}, {}, {"DDP", "DeepSpeed stage 0"}),
]


@pytest.mark.parametrize(("pins", "given", "labels"), ALLOWED)
def test_what_a_framework_does_is_left(pins: dict[str, Any], given: dict[str, Any], labels: set[str]) -> None:
    """The same pins where they mean something, and of open strategies those that can."""
    assert allowed(pins, **given) == labels


@pytest.mark.parametrize(
    ("pins", "training", "words"),
    [
        ({"framework": "deepspeed", "strategy": "ddp"}, {"master_weights": False}, "keeps a fp32 master"),
        ({"strategy": "zero2", "offload_optimizer": "none"}, {"master_weights": False, "precision": "fp16"}, "offloaded to the CPU"),
        ({"strategy": "zero3", "offload_optimizer": "nvme"}, {"master_weights": False, "precision": "fp16"}, "offloaded to the CPU"),
    ],
)
def test_pure_16_bit_training_is_refused_where_it_is_none(pins: dict[str, Any], training: dict[str, Any], words: str) -> None:
    """The same rule as the search's, at the field that asks for it."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        plan_of(LLAMA, {"seq_len": 8192, "micro_batch": 1} | training, constraints=pins)
    assert caught.value.errors[0].loc == ("training", "master_weights")


@pytest.mark.parametrize("pins", [{"offload_optimizer": "cpu", "offload_parameters": "cpu"}, {"offload_optimizer": "nvme"}])
def test_what_deepspeed_ignores_is_planned_and_said(pins: dict[str, Any]) -> None:
    """Below stage 3 it parses these and does something else: people run such files, and the answer says what happens (ADR 8)."""
    plan = plan_of(LLAMA, {"seq_len": 8192, "micro_batch": 1}, constraints={"strategy": "zero2", **pins})
    said = [w for w in plan.warnings if w.code in ("offload_parameters_ignored", "nvme_becomes_cpu")]
    assert len(said) == 1
    assert "zero3" in said[0].fix


def test_a_group_of_all_ranks_is_plain_zero3() -> None:
    """shard_group_size 8 on 8 GPUs asks for what ZeRO-3 does anyway: no secondary copy is kept."""
    plan = plan_of(LLAMA, {"seq_len": 8192, "micro_batch": 1}, constraints={"strategy": "zero3", "shard_group_size": 8})
    assert plan.recommended.settings.hpz_group_size == 1


@pytest.mark.parametrize(("model", "gpus", "nodes"), [(LLAMA, 8, 4), (MIXTRAL, 8, 2), ({"params": 7e10}, 4, 4)])
def test_nothing_the_search_tries_is_refused_when_pinned(model: dict[str, Any], gpus: int, nodes: int) -> None:
    """Search and refusals apply the same rules: every structure of an open space may be pinned as it is."""
    question = question_of(model, {"seq_len": 8192}, gpus=gpus, nodes=nodes)
    setup = replace(question.setup, pool=question.pools[0])
    space = build_space(setup, question.constraints, batches=2)
    names = ("mesh", "row", "group", "hpz", "offload_optimizer", "offload_parameters")
    tried = set(zip(*(space.structures[name].tolist() for name in names), strict=True))
    assert len(tried) > 100
    for mesh, row, group, hpz, optimizer, parameters in tried:
        strategy, degrees = STRATEGIES[row], space.meshes[mesh].degrees
        pins = Constraints(
            framework=strategy.framework,
            strategy=strategy.name,
            shard_group_size=hpz if hpz > 1 else group if strategy.states == "group" else None,
            offload_optimizer=OFFLOAD_TARGETS[optimizer],
            offload_parameters=OFFLOAD_TARGETS[parameters],
            **{axis: getattr(degrees, axis) for axis in AXES},
        )
        assert strategies_for(setup, pins)[0] == (strategy,)


@pytest.mark.parametrize(
    ("pins", "training", "release", "since"),
    [
        ({"framework": "deepspeed"}, {"master_weights": False}, "0.18.0", "0.18.3"),
        ({"strategy": "zero2"}, {"optimizer": "muon"}, "0.17.5", "0.17.6"),
        ({"strategy": "zero3"}, {"optimizer": "muon"}, "0.18.8", "0.18.9"),
        ({"strategy": "zero1", "offload_optimizer": "cpu"}, {"master_weights": False, "precision": "fp16"}, "0.18.0", "0.18.3"),
    ],
)
def test_what_a_release_has_not_learnt_is_refused(pins: dict[str, Any], training: dict[str, Any], release: str, since: str) -> None:
    """With the release that has it; from that release on, and with another framework, it is planned."""
    body: dict[str, Any] = {"seq_len": 8192, "micro_batch": 1} | training
    with pytest.raises(InvalidRequestError, match=f"DeepSpeed {release} does not know.*came with {since}"):
        plan_of(LLAMA, body, constraints=pins, deepspeed_version=release)
    assert plan_of(LLAMA, body, constraints=pins, deepspeed_version=since).recommended.settings.framework == "deepspeed"
    if body.get("precision") != "fp16":
        assert plan_of(LLAMA, body, constraints={"framework": "fsdp2"}, deepspeed_version=release).recommended
