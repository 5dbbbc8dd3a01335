"""The settings that really act, after defaults, ignored keys and names of the other version of FSDP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.audit.reading import at, block, whole
from app.audit.subject import Subject
from app.audit.torch.blocks import (
    Block,
    deepspeed_block,
    distributed_type,
    fsdp_block,
    grad_accum,
    is_whole,
    mixed_precision,
    processes,
    trainer_arguments,
    truth,
)
from app.domain.parallel.fsdp_names import SHARDINGS

Strategy = Literal["fsdp_full", "fsdp_grad_op", "hsdp", "ddp"]
Wrap = Literal["blocks", "size", "whole"]
SIZE_DEFAULT = 10**8
"""``fsdp_min_num_params`` where accelerate's launcher is given none."""
AXES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What runs.

    Attributes:
        framework: ``fsdp``, ``deepspeed`` or ``ddp``.
        strategy: of FSDP or DDP; None under DeepSpeed, whose settings say it.
        version: of FSDP; 0 without it.
        reshard_after_forward: parameters are freed between forward and backward.
        replicas, shards: groups of data parallelism; None where the number of ranks is unknown.
        tensor_parallel, context_parallel, sequence_parallel: sizes, 1 for none.
        wrap: units are the repeated blocks, chosen by size, or the whole model.
        offload: parameters, gradients and optimizer states are in host memory.
        activation_checkpointing, activation_offload: blocks recompute, and their inputs wait in host memory.
        mixed_precision: ``no``, ``bf16``, ``fp16`` or ``fp8``.
        stored: dtype of the trained weights between steps, and so of gradients and optimizer states.
        compute, reduce: dtypes of forward and backward, and of the reduction of gradients.
        grad_accum: micro-steps of an optimizer step.
        sync_each_batch: gradients are reduced at each of them; otherwise whole gradients are held.
        state_dict: ``FULL_STATE_DICT`` and so on.
        ram_efficient: one process of a node loads the weights.
        deepspeed: the DeepSpeed configuration it comes to; None without DeepSpeed, or where a file beside it says so.
    """

    framework: Literal["fsdp", "deepspeed", "ddp"]
    strategy: Strategy | None
    version: int = 0
    reshard_after_forward: bool = True
    replicas: int | None = None
    shards: int | None = None
    tensor_parallel: int = 1
    context_parallel: int = 1
    sequence_parallel: int = 1
    wrap: Wrap = "blocks"
    offload: bool = False
    activation_checkpointing: bool = False
    activation_offload: bool = False
    mixed_precision: str = "no"
    stored: str = "fp32"
    compute: str = "fp32"
    reduce: str = "fp32"
    grad_accum: int = 1
    sync_each_batch: bool = False
    state_dict: str = ""
    ram_efficient: bool = False
    deepspeed: Mapping[str, Any] | None = None


def effective_fsdp(subject: Subject) -> Effective | None:
    """The settings that act under accelerate or the Trainer; None for a file of DeepSpeed's own."""
    if subject.kind == "deepspeed":
        return None
    found = fsdp_block(subject)
    # The Trainer looks at fsdp_config only where fsdp is on.
    if found is not None and (subject.kind != "hf_trainer" or subject.config.get("fsdp")):
        return _fsdp(subject, found)
    if deepspeed_block(subject) is not None or trainer_arguments(subject).get("deepspeed"):
        sizes = mesh(subject)
        return Effective(
            framework="deepspeed",
            strategy=None,
            sequence_parallel=sizes["sp"],
            mixed_precision=mixed_precision(subject),
            grad_accum=grad_accum(subject),
            deepspeed=deepspeed_settings(subject),
        )
    return _ddp(subject)


def _ddp(subject: Subject) -> Effective:
    ranks = 1 if distributed_type(subject) == "NO" else processes(subject)
    mixed = mixed_precision(subject)
    return Effective(
        framework="ddp",
        strategy="ddp",
        replicas=ranks,
        shards=1,
        activation_checkpointing=bool(checkpointing_argument(trainer_arguments(subject))),
        mixed_precision=mixed,
        stored="fp32" if mixed != "no" else loaded(subject),
        compute=compute(subject),
        grad_accum=grad_accum(subject),
        state_dict="FULL_STATE_DICT",
    )


def _fsdp(subject: Subject, found: Block) -> Effective:
    mixed, reshard = mixed_precision(subject), reshards(found)
    sizes, ranks = mesh(subject), processes(subject)
    replicas, shards = _groups(subject, found, ranks)
    # FSDP2 keeps the dtype of the weights; mixed precision has accelerate bring the trained ones to fp32 first.
    stored = "fp32" if mixed != "no" else loaded(subject)
    return Effective(
        framework="fsdp",
        strategy=strategy(found, replicas),
        version=found.version,
        reshard_after_forward=reshard,
        replicas=replicas,
        shards=shards,
        tensor_parallel=sizes["tp"],
        context_parallel=sizes["cp"],
        sequence_parallel=sizes["sp"],
        wrap=wrap(found),
        offload=offloads(found),
        activation_checkpointing=found.flag("activation_checkpointing") or bool(checkpointing_argument(trainer_arguments(subject))),
        activation_offload=not found.trainer and found.version == 2 and found.flag("activation_checkpointing_offload"),
        mixed_precision=mixed,
        stored=stored,
        compute=compute(subject),
        reduce=compute(subject),
        grad_accum=grad_accum(subject),
        sync_each_batch=syncs_each_batch(subject),
        state_dict=state_dict(found),
        ram_efficient=found.flag("cpu_ram_efficient_loading", not found.trainer),
    )


def loaded(subject: Subject) -> str:
    """Dtype that weights are loaded in: the one the training computes in, where nothing casts them."""
    said = subject.training.precision if subject.training is not None else "fp32"
    return "bf16" if said == "fp8" else said


def compute(subject: Subject) -> str:
    """Dtype of forward and backward."""
    mixed = mixed_precision(subject)
    return loaded(subject) if mixed == "no" else "bf16" if mixed == "fp8" else mixed


def sharding(found: Block) -> str:
    """FSDP1's strategy that acts, by its name; empty where the file has none of them."""
    # Neither accelerate's launcher nor the Trainer hands FSDP1 what the block calls reshard_after_forward.
    said = "FULL_SHARD" if found.trainer else found.text("sharding_strategy", "FULL_SHARD")
    names = {text: row.fsdp1 for number, row in enumerate(SHARDINGS, start=1) for text in (str(number), row.fsdp1)}
    return names.get(said, "")


def reshards(found: Block) -> bool:
    """Whether parameters are freed after forward."""
    if found.version == 2:
        return found.flag("reshard_after_forward", True)
    return sharding(found) not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD")


def strategy(found: Block, replicas: int | None) -> Strategy:
    """The strategy in the product's words."""
    if found.version == 1 and sharding(found) == "NO_SHARD":
        return "ddp"
    hybrid = found.version == 1 and sharding(found).startswith("HYBRID")
    if hybrid or (replicas or 1) > 1:
        return "hsdp"
    return "fsdp_full" if reshards(found) else "fsdp_grad_op"


def mesh(subject: Subject) -> dict[str, int]:
    """Sizes of the axes of parallelism that reach the library; 1 where none is given."""
    values, named = block(subject.config, "parallelism_config"), ""
    if subject.kind == "accelerate":
        named = "parallelism_config_"
    elif subject.kind != "hf_trainer":
        values = {}
    sizes = {axis: number(values.get(f"{named}{axis}_size")) for axis in AXES}
    return {axis: size if size and size > 0 else 1 for axis, size in sizes.items()}


def number(value: Any) -> int | None:
    """A whole number, or one in quotes, as int() reads it; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return whole(value)


def _groups(subject: Subject, found: Block, ranks: int | None) -> tuple[int | None, int | None]:
    sizes = mesh(subject)
    if found.version == 2 and any(size > 1 for size in sizes.values()):
        return sizes["dp_replicate"], sizes["dp_shard"] * sizes["cp"]
    if found.version == 1 and sharding(found) == "NO_SHARD":
        return ranks, 1
    if found.version == 1 and sharding(found).startswith("HYBRID") and subject.cluster is not None:
        return subject.cluster.nodes, subject.cluster.gpus_per_node
    return 1, ranks


def wrap(found: Block) -> Wrap:
    """What becomes one unit of FSDP."""
    policy = found.text("auto_wrap_policy", "TRANSFORMER_BASED_WRAP" if found.trainer else "NO_WRAP")
    if policy == "SIZE_BASED_WRAP":
        return "size" if min_params(found) > 0 else "whole"
    return "blocks" if policy == "TRANSFORMER_BASED_WRAP" else "whole"


def min_params(found: Block) -> int:
    """The size from which a module is a unit; the default where it is missing or no number."""
    said = whole(found.get("min_num_params"))
    return (0 if found.trainer else SIZE_DEFAULT) if said is None else said


def offloads(found: Block) -> bool:
    """Whether states live in host memory; the Trainer takes any value that is not empty as yes."""
    if found.trainer:
        return bool(found.get("cpu_offload"))
    return found.flag("offload_params")


def state_dict(found: Block) -> str:
    """How checkpoints are written."""
    default = "FULL_STATE_DICT" if found.trainer or found.version == 1 else "SHARDED_STATE_DICT"
    said = found.text("state_dict_type", default)
    return {"1": "FULL_STATE_DICT", "2": "LOCAL_STATE_DICT", "3": "SHARDED_STATE_DICT"}.get(said, said)


def checkpointing_argument(arguments: Mapping[str, Any]) -> Any:
    """The Trainer's own recomputation: the newer name counts where both are written."""
    newer = arguments.get("activation_checkpointing")
    return arguments.get("gradient_checkpointing") if newer is None else newer


def syncs_each_batch(subject: Subject) -> bool:
    """Whether the Trainer reduces gradients at every micro-step; accelerate's files have no key for it."""
    asked = at(trainer_arguments(subject), "accelerator_config.gradient_accumulation_kwargs.sync_each_batch")
    return truth(asked) is True


def deepspeed_settings(subject: Subject) -> Mapping[str, Any] | None:
    """The DeepSpeed configuration that accelerate builds of its own keys, or the Trainer's mapping; None where a file has it."""
    given = trainer_arguments(subject).get("deepspeed")
    if isinstance(given, Mapping):
        return given
    found = deepspeed_block(subject)
    if found is None or found[1].get("deepspeed_config_file") is not None:
        return None
    values = found[1]
    zero: dict[str, Any] = {"stage": _stage(values)}
    for part in ("optimizer", "param"):
        device = str(values.get(f"offload_{part}_device") or "none").lower()
        if device != "none":
            # What the launcher does not pass on: the path. DeepSpeed is told "none", a folder of that name.
            zero[f"offload_{part}"] = {"device": device} | ({"nvme_path": "none"} if device == "nvme" else {})
    if zero["stage"] == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = truth(values.get("zero3_save_16bit_model")) is True
    accum = whole(values.get("gradient_accumulation_steps"))
    clipping = values.get("gradient_clipping")
    mixed = mixed_precision(subject) if is_whole(subject) or subject.training else "no"
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": accum or "auto",
        "gradient_clipping": clipping if isinstance(clipping, int | float) else "auto",
        "zero_optimization": zero,
        "bf16": {"enabled": mixed in ("bf16", "fp8")},
        "fp16": {"enabled": mixed == "fp16"},
    }


def _stage(values: Mapping[str, Any]) -> int:
    found = number(values.get("zero_stage", 2))
    return 2 if found is None else found
