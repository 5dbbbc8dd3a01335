"""FSDP1's names in FSDP2's words and back, and what has no counterpart. One table; accelerate's keys are the spelling.

Sources: torch 2.13 ``fsdp/api.py`` and ``fsdp/_fully_shard``; accelerate 1.15 ``utils/dataclasses.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """One of FSDP1's sharding strategies.

    Attributes:
        fsdp1: its name.
        reshard: ``reshard_after_forward`` of FSDP2; None where FSDP2 has no such thing.
        replicates: whether the ranks form a grid of copies, which FSDP2 takes from its mesh.
        like: the nearest of DeepSpeed's.
        note: what differs, or what to use instead.
    """

    fsdp1: str
    reshard: bool | None
    replicates: bool
    like: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """One option; None on a side that has none.

    Attributes:
        fsdp1, fsdp2: its name on each side.
        note: what takes its place, or what differs.
    """

    fsdp1: str | None
    fsdp2: str | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A translated block, the copies its mesh needs, and what was lost on the way."""

    config: dict[str, Any]
    replicates: bool
    lost: tuple[str, ...]


SHARDINGS = (
    Sharding(fsdp1="FULL_SHARD", reshard=True, replicates=False, like="ZeRO-3"),
    Sharding(
        fsdp1="SHARD_GRAD_OP", reshard=False, replicates=False, like="ZeRO-2", note="weights are sharded between steps, unlike ZeRO-2's"
    ),
    Sharding(fsdp1="NO_SHARD", reshard=None, replicates=False, like="stage 0", note="use DistributedDataParallel"),
    Sharding(
        fsdp1="HYBRID_SHARD", reshard=True, replicates=True, like="MiCS", note="FSDP2 reads the sizes from its mesh, FSDP1 takes nodes"
    ),
    Sharding(fsdp1="HYBRID_SHARD_ZERO2", reshard=False, replicates=True, like="", note="torch spells it _HYBRID_SHARD_ZERO2"),
)
"""In the order of torch's enumeration, which counts from 1."""

KEYS = (
    Renamed(fsdp1="fsdp_sharding_strategy", fsdp2="fsdp_reshard_after_forward", note="see the strategies"),
    Renamed(fsdp1="fsdp_offload_params", fsdp2="fsdp_offload_params"),
    Renamed(fsdp1="fsdp_auto_wrap_policy", fsdp2="fsdp_auto_wrap_policy"),
    Renamed(fsdp1="fsdp_transformer_layer_cls_to_wrap", fsdp2="fsdp_transformer_layer_cls_to_wrap"),
    Renamed(fsdp1="fsdp_min_num_params", fsdp2="fsdp_min_num_params"),
    Renamed(
        fsdp1="fsdp_state_dict_type", fsdp2="fsdp_state_dict_type", note="FSDP2 has no LOCAL_STATE_DICT; SHARDED_STATE_DICT takes its place"
    ),
    Renamed(fsdp1="fsdp_activation_checkpointing", fsdp2="fsdp_activation_checkpointing"),
    Renamed(fsdp1="fsdp_cpu_ram_efficient_loading", fsdp2="fsdp_cpu_ram_efficient_loading", note="FSDP1 needs fsdp_sync_module_states too"),
    Renamed(fsdp1="fsdp_ignored_modules", fsdp2="fsdp_ignored_modules", note="FSDP2 ignores the parameters of these modules"),
    Renamed(
        fsdp1="fsdp_backward_prefetch", fsdp2=None, note="FSDP2 always gathers one unit ahead; set_modules_to_backward_prefetch for more"
    ),
    Renamed(fsdp1="fsdp_forward_prefetch", fsdp2=None, note="set_modules_to_forward_prefetch"),
    Renamed(fsdp1="fsdp_use_orig_params", fsdp2=None, note="FSDP2 has no flat parameters, so it always does"),
    Renamed(
        fsdp1="fsdp_sync_module_states",
        fsdp2=None,
        note="fsdp_cpu_ram_efficient_loading, or set_model_state_dict with broadcast_from_rank0",
    ),
    Renamed(fsdp1=None, fsdp2="fsdp_activation_checkpointing_offload", note="FSDP1 cannot offload checkpointed activations"),
)

CALLS = (
    Renamed(
        fsdp1="FullyShardedDataParallel(module)",
        fsdp2="fully_shard(module)",
        note="bottom up, the root last; it changes the module in place",
    ),
    Renamed(fsdp1="auto_wrap_policy", fsdp2="fully_shard on each block", note="the optimizer is built afterwards"),
    Renamed(
        fsdp1="MixedPrecision",
        fsdp2="MixedPrecisionPolicy",
        note="buffer_dtype has no counterpart; cast_root_forward_inputs became cast_forward_inputs",
    ),
    Renamed(fsdp1="CPUOffload", fsdp2="CPUOffloadPolicy", note="pinned unless told otherwise"),
    Renamed(fsdp1="no_sync()", fsdp2="set_requires_gradient_sync(False)", note="both hold whole gradients meanwhile"),
    Renamed(fsdp1="clip_grad_norm_()", fsdp2="torch.nn.utils.clip_grad_norm_", note="the norm is a DTensor: full_tensor()"),
    Renamed(
        fsdp1="state_dict_type()", fsdp2="get_model_state_dict, get_optimizer_state_dict", note="of torch.distributed.checkpoint.state_dict"
    ),
    Renamed(fsdp1="summon_full_params()", fsdp2=None, note="unshard() one module at a time, or a full state dict"),
    Renamed(fsdp1="limit_all_gathers", fsdp2=None, note="FSDP2 frees without waiting, so there is nothing to limit"),
    Renamed(fsdp1="ignored_modules", fsdp2="ignored_params"),
    Renamed(fsdp1="device_id, sync_module_states, param_init_fn", fsdp2=None, note="build on meta, to_empty, set_model_state_dict"),
    Renamed(fsdp1="ShardedGradScaler", fsdp2="torch.amp.GradScaler"),
    Renamed(fsdp1=None, fsdp2="reshard_after_forward=8", note="keep an eighth between forward and backward; FSDP1 has all or nothing"),
    Renamed(fsdp1=None, fsdp2="set_requires_all_reduce(False)", note="HSDP that adds up in the group and reduces over copies once"),
    Renamed(fsdp1=None, fsdp2="shard_placement_fn", note="cut a tensor along another dim, such as few experts over many ranks"),
)


def to_fsdp2(block: Mapping[str, Any]) -> Translation:
    """An ``fsdp_config`` of version 1 as one of version 2.

    Raises:
        InvalidRequestError: NO_SHARD, or no strategy of FSDP1's.

    Example:
        >>> to_fsdp2({"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_backward_prefetch": "BACKWARD_PRE"}).config
        {'fsdp_version': 2, 'fsdp_reshard_after_forward': False}
    """
    strategy = _sharding(str(block.get("fsdp_sharding_strategy", "FULL_SHARD")))
    if strategy.reshard is None:
        raise InvalidRequestError.at(
            "fsdp_config", "fsdp_sharding_strategy", msg=f"FSDP2 has no {strategy.fsdp1}: every parameter is sharded", hint=strategy.note
        )
    config: dict[str, Any] = {"fsdp_version": 2, "fsdp_reshard_after_forward": strategy.reshard}
    kept, lost = _renamed(block, {k.fsdp1: k for k in KEYS if k.fsdp1}, skip=("fsdp_version", "fsdp_sharding_strategy"))
    if kept.get("fsdp_state_dict_type") == "LOCAL_STATE_DICT":
        kept["fsdp_state_dict_type"] = "SHARDED_STATE_DICT"
        lost.append("fsdp_state_dict_type LOCAL_STATE_DICT")
    return Translation(config=config | kept, replicates=strategy.replicates, lost=tuple(lost))


def to_fsdp1(block: Mapping[str, Any], *, replicates: bool = False) -> Translation:
    """An ``fsdp_config`` of version 2 as one of version 1, whose flat parameters keep the original ones in view.

    Args:
        block: the config.
        replicates: whether its mesh has copies.

    Example:
        >>> to_fsdp1({"fsdp_reshard_after_forward": True}, replicates=True).config
        {'fsdp_version': 1, 'fsdp_sharding_strategy': 'HYBRID_SHARD', 'fsdp_use_orig_params': True}
    """
    reshard = block.get("fsdp_reshard_after_forward", True)
    strategy = next(s for s in SHARDINGS if s.reshard is reshard and s.replicates is replicates)
    config: dict[str, Any] = {"fsdp_version": 1, "fsdp_sharding_strategy": strategy.fsdp1, "fsdp_use_orig_params": True}
    kept, lost = _renamed(block, {k.fsdp2: k for k in KEYS if k.fsdp2}, skip=("fsdp_version", "fsdp_reshard_after_forward"), back=True)
    if kept.get("fsdp_cpu_ram_efficient_loading"):
        kept["fsdp_sync_module_states"] = True
    return Translation(config=config | kept, replicates=replicates, lost=tuple(lost))


def _sharding(name: str) -> Sharding:
    """A strategy by its name, or by its number in torch's enumeration."""
    spellings = {spelled: s for number, s in enumerate(SHARDINGS, start=1) for spelled in (str(number), s.fsdp1, f"_{s.fsdp1}")}
    found = spellings.get(name.upper())
    if found is None:
        raise InvalidRequestError.at(
            "fsdp_config", "fsdp_sharding_strategy", msg=f"{name[:80]!r} is no sharding strategy of FSDP1",
            hint=f"use {', '.join(s.fsdp1 for s in SHARDINGS)}",
        )  # fmt: skip
    return found


def _renamed(
    block: Mapping[str, Any], table: Mapping[str, Renamed], *, skip: tuple[str, ...], back: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """What keeps a meaning under its new name, and the names that have none."""
    kept: dict[str, Any] = {}
    lost: list[str] = []
    for key, value in block.items():
        row = table.get(key)
        name = (row.fsdp1 if back else row.fsdp2) if row else None
        if key in skip:
            continue
        if name is None:
            lost.append(key)
        else:
            kept[name] = value
    return kept, lost
