"""FSDP1 and FSDP2 translate into each other where both have the thing; tests/verify asks accelerate the same."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import InvalidRequestError
from app.domain.parallel.fsdp_names import CALLS, KEYS, SHARDINGS, to_fsdp1, to_fsdp2


@pytest.mark.parametrize(
    ("strategy", "reshard", "replicates"),
    [
        ("FULL_SHARD", True, False),
        ("SHARD_GRAD_OP", False, False),
        ("HYBRID_SHARD", True, True),
        ("HYBRID_SHARD_ZERO2", False, True),
        ("_HYBRID_SHARD_ZERO2", False, True),
        ("full_shard", True, False),
        ("1", True, False),
        ("2", False, False),
        ("4", True, True),
        ("5", False, True),
    ],
)
def test_strategies_become_a_choice_and_a_mesh(strategy: str, reshard: bool, replicates: bool) -> None:
    """By name, torch's own spelling or number."""
    found = to_fsdp2({"fsdp_version": 1, "fsdp_sharding_strategy": strategy})
    assert found.config == {"fsdp_version": 2, "fsdp_reshard_after_forward": reshard}
    assert found.replicates is replicates
    assert found.lost == ()


@pytest.mark.parametrize("strategy", ["NO_SHARD", "3", "NO_RESHARD", "0", "9", "-1", ""])
def test_what_has_no_counterpart_is_refused(strategy: str) -> None:
    """NO_SHARD is DDP; the others are no strategies, though accelerate's help names one of them."""
    with pytest.raises(InvalidRequestError, match=r"NO_SHARD|no sharding strategy"):
        to_fsdp2({"fsdp_sharding_strategy": strategy})


def test_there_and_back_again() -> None:
    """Every strategy FSDP2 has comes back under its name, and shared keys keep their values."""
    shared: dict[str, Any] = {"fsdp_offload_params": True, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 7}
    for strategy in (s for s in SHARDINGS if s.reshard is not None):
        old = {"fsdp_version": 1, "fsdp_sharding_strategy": strategy.fsdp1, "fsdp_use_orig_params": True, **shared}
        new = to_fsdp2(old)
        assert new.lost == ("fsdp_use_orig_params",)
        assert to_fsdp1(new.config, replicates=new.replicates).config == old


def test_what_is_lost_is_named() -> None:
    """Prefetching one way, offloaded activations the other; an unknown key is never passed on."""
    old = {"fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_forward_prefetch": True, "fsdp_state_dict_type": "LOCAL_STATE_DICT", "typo": 1}
    new = to_fsdp2(old)
    assert set(new.lost) == {"fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_state_dict_type LOCAL_STATE_DICT", "typo"}
    assert new.config["fsdp_state_dict_type"] == "SHARDED_STATE_DICT"
    assert to_fsdp1({"fsdp_activation_checkpointing_offload": True}).lost == ("fsdp_activation_checkpointing_offload",)


def test_loading_on_one_rank_needs_a_second_key_in_fsdp1() -> None:
    """accelerate switches it on by itself, with a warning; the translation says it."""
    block = {"fsdp_cpu_ram_efficient_loading": True}
    assert to_fsdp1(block).config["fsdp_sync_module_states"] is True
    assert "fsdp_sync_module_states" not in to_fsdp1({}).config


def test_every_row_says_something() -> None:
    """Two sides, or one and what takes its place."""
    for row in (*KEYS, *CALLS):
        assert row.fsdp1 or row.fsdp2
        assert (row.fsdp1 and row.fsdp2) or row.note
