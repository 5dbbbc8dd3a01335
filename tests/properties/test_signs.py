"""No figure of an answer is negative, however small or odd the model: bytes, seconds and shares count something."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.domain.errors import InvalidRequestError
from app.domain.model.infer import architecture_from_params
from app.domain.model.parameters import counted_params, outside_params, total_params
from app.services.plan import planned
from app.services.request import PlanRequest
from tests.planning import request_of

PARAMS = st.one_of(st.sampled_from([1e5, 3e5, 1e6, 1e7, 7e7, 7.73e7, 1e8]), st.floats(1e5, 1e9).map(round))
SHAPES = st.builds(
    dict, num_layers=st.sampled_from([1, 2, 7]), hidden_size=st.sampled_from([8, 64, 96]), num_heads=st.sampled_from([1, 4]),
    ffn_hidden_size=st.sampled_from([1, 24, 256]), vocab_size=st.sampled_from([1, 100, 50_000]), num_experts=st.sampled_from([None, 4]),
    experts_per_token=st.just(1), tied_embeddings=st.booleans(),
)  # fmt: skip
TRAINING = st.builds(
    dict, seq_len=st.sampled_from([1, 16, 4096]), optimizer=st.sampled_from(["adamw", "muon", "adafactor", "adamw_8bit", "sgd"]),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]), grad_accum=st.sampled_from([None, 4]), ema=st.booleans(),
    adapter=st.sampled_from([None, {"kind": "lora", "rank": 1}, {"kind": "qlora", "rank": 4}]),
    activation_checkpointing=st.sampled_from([None, "none", "full"]), activation_offload=st.sampled_from([None, True]),
)  # fmt: skip
STRATEGIES = (
    (None, None), ("ddp", "ddp"), ("ddp", "zero1"), ("deepspeed", "zero1"), ("deepspeed", "zero2"), ("deepspeed", "zero3"),
    ("fsdp2", "fsdp_full"), ("fsdp2", "fsdp_grad_op"), ("fsdp2", "hsdp"),
)  # fmt: skip
PINS = st.builds(
    lambda strategy, offload: {"framework": strategy[0], "strategy": strategy[1], "offload_optimizer": offload},
    st.sampled_from(STRATEGIES), st.sampled_from([None, "none", "cpu"]),
)  # fmt: skip


def negative(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number below zero, or that is none, by its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from negative(inner, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from negative(inner, f"{path}[{number}]")
    elif isinstance(value, (int, float)) and (math.isnan(value) or value < 0):
        yield path, value


@settings(max_examples=120, deadline=None)
@given(
    model=st.one_of(PARAMS.map(lambda n: {"params": n}), SHAPES.map(lambda shape: {"shape": shape})), training=TRAINING, pins=PINS,
    gpus=st.sampled_from([(1, 1), (8, 1), (8, 4), (8, 512)]),
)  # fmt: skip
def test_no_figure_is_negative(model: dict[str, Any], training: dict[str, Any], pins: dict[str, Any], gpus: tuple[int, int]) -> None:
    """In no part of the answer: recommended, alternatives, ladder, checkpoint, ways out."""
    try:
        document = planned(request_of(model, training, gpus=gpus[0], nodes=gpus[1], constraints=pins)).document()
    except InvalidRequestError:
        assume(False)
    assert list(negative(document)) == []


@pytest.mark.parametrize("params", [1e5, 123_456, 1e6, 5e6, 1e7, 5e7, 7.7e7])
def test_a_model_too_small_for_the_published_shapes_is_made_narrower(params: float) -> None:
    """Its tensors are about as many as were given, half of them in the blocks, and the count is exact."""
    model = architecture_from_params(params)
    assert total_params(model) == round(params)
    assert outside_params(model) < 0.61 * params
    assert counted_params(model) == pytest.approx(params, rel=0.1)


@pytest.mark.parametrize(("experts", "words"), [(None, "embedding and head alone have 8,128"), (4, "embedding, head and experts alone")])
def test_a_total_that_leaves_nothing_for_the_blocks_is_refused(experts: int | None, words: str) -> None:
    """With what the tensors have, and at its field."""
    shape = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "ffn_hidden_size": 128, "vocab_size": 63, "total_params": 8000}
    shape |= {"num_experts": experts, "experts_per_token": 1} if experts else {}
    body = {"model": {"shape": shape}, "training": {"seq_len": 16}, "cluster": {"pools": [{"gpu": "h100-sxm-80gb"}]}}
    with pytest.raises(InvalidRequestError, match=words) as caught:
        planned(PlanRequest.model_validate(body))
    assert caught.value.errors[0].loc == ("model", "shape", "total_params")
