"""Properties of tensor and pipeline parallelism that hold whatever the constants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.setup import numbers_of
from app.domain.share import dim0_padding, share_of
from tests.planning import evaluate_request

SHAPE: dict[str, Any] = {
    "num_layers": 24, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 16, "ffn_hidden_size": 8192, "vocab_size": 64000,
}  # fmt: skip
STRATEGIES = [("deepspeed", "ddp"), ("deepspeed", "zero1"), ("deepspeed", "zero3"), ("fsdp2", "fsdp_full")]
PINS = {"offload_optimizer": "none", "offload_parameters": "none"}


def _evaluation(strategy: tuple[str, str], *, tp: int = 1, pp: int = 1, **changes: Any) -> Any:
    training = {"seq_len": 1024, "micro_batch": 1, "grad_accum": changes.get("grad_accum", 8)}
    training["activation_checkpointing"] = changes.get("checkpointing", "full")
    degrees = {"framework": strategy[0], "strategy": strategy[1], "tensor_parallel": tp, "pipeline_parallel": pp}
    return evaluate_request({"shape": changes.get("shape", SHAPE)}, training, gpus=8, nodes=2, constraints=PINS | degrees)


def _parameter_bytes(evaluation: Any) -> float:
    return max(float(line.value.max()) for line in evaluation.memory.gpu.lines if line.card.title == "parameters")


@settings(max_examples=20, deadline=None)
@given(strategy=st.sampled_from(STRATEGIES), tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 3]))
def test_more_tensor_ranks_never_need_more_parameter_bytes(strategy: tuple[str, str], tp: int, pp: int) -> None:
    """Doubling the tensor ranks never raises the parameters of one GPU: they divide what sharding divides, or more."""
    if 16 % (2 * tp * pp) or strategy == ("deepspeed", "zero3"):  # which DeepSpeed's pipeline engine refuses
        pp = 1
    few, many = _evaluation(strategy, tp=tp, pp=pp), _evaluation(strategy, tp=2 * tp, pp=pp)
    assert _parameter_bytes(many) <= _parameter_bytes(few) * 1.001


@settings(max_examples=20, deadline=None)
@given(strategy=st.sampled_from(STRATEGIES[:2]), pp=st.sampled_from([1, 2, 4, 8]), tied=st.booleans(), layers=st.integers(16, 33))
def test_more_pipeline_stages_never_need_more_parameter_bytes(strategy: tuple[str, str], pp: int, tied: bool, layers: int) -> None:
    """Doubling the stages never raises the parameters of the busiest GPU, however the blocks and the ends fall."""
    shape = SHAPE | {"num_layers": layers, "tied_embeddings": tied}
    few, many = _evaluation(strategy, pp=pp, shape=shape), _evaluation(strategy, pp=2 * pp, shape=shape)
    assert _parameter_bytes(many) <= _parameter_bytes(few)


@settings(max_examples=30, deadline=None)
@given(
    framework=st.sampled_from(["deepspeed", "fsdp2"]), tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]),
    tied=st.booleans(), layers=st.integers(4, 33), experts=st.sampled_from([0, 8]),
)  # fmt: skip
def test_parts_sum_to_the_whole(framework: str, tp: int, pp: int, tied: bool, layers: int, experts: int) -> None:
    """The parameters of all stages and tensor ranks are the model's, padding apart; a tied table is on both ends."""
    shape = SHAPE | {"num_layers": layers, "tied_embeddings": tied}
    if experts:
        shape |= {"num_experts": experts, "experts_per_token": 2, "ffn_hidden_size": 1024}
    strategy = ("deepspeed", "zero1") if framework == "deepspeed" else ("fsdp2", "fsdp_full")
    evaluation = _evaluation(strategy, tp=tp, pp=pp, shape=shape)
    numbers = numbers_of(evaluation.setup.model, evaluation.setup.recipe)
    parts = [share_of(evaluation.setup, numbers, evaluation.columns, stage) for stage in range(pp)]
    total = sum(float((part.inside + part.outside)[0]) * tp for part in parts)
    twice, padding = numbers.head if tied and pp > 1 else 0, dim0_padding(evaluation.setup, evaluation.columns)
    whole = float((numbers.inside * padding.inside + (numbers.outside + twice) * padding.outside)[0])
    assert total == pytest.approx(whole, rel=1e-9)
    assert whole == pytest.approx(numbers.total + twice, rel=1e-9) or framework == "fsdp2"
    assert sum(int(part.layers[0]) for part in parts) == layers


@settings(max_examples=30, deadline=None)
@given(pp=st.sampled_from([1, 2, 4, 8]), grad_accum=st.integers(1, 12))
def test_micro_batches_in_flight(pp: int, grad_accum: int) -> None:
    """Under 1F1B the first stage holds min(pp, grad_accum) micro-batches, each further stage one fewer, the last one."""
    evaluation = _evaluation(("deepspeed", "zero1"), pp=pp, grad_accum=grad_accum)
    numbers = numbers_of(evaluation.setup.model, evaluation.setup.recipe)
    for stage in range(pp):
        share = share_of(evaluation.setup, numbers, evaluation.columns, stage)
        assert share.in_flight[0] == min(pp - stage, grad_accum)
    assert evaluation.memory.share.in_flight[0] == min(pp, grad_accum)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensor_ranks_never_add_activations(strategy: tuple[str, str]) -> None:
    """More tensor ranks keep fewer saved bytes on each of them, and at least their share."""
    kept = []
    for tp in (1, 2, 4, 8):
        evaluation = _evaluation(strategy, tp=tp, checkpointing="none")
        kept.append(next(float(line.value[0]) for line in evaluation.memory.gpu.lines if line.card.title == "saved activations"))
    assert kept == sorted(kept, reverse=True)
    assert all(each >= kept[0] / tp for each, tp in zip(kept, (1, 2, 4, 8), strict=True))
