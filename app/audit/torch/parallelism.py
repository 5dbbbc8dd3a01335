"""``parallelism_config``: sizes that never arrive, do not multiply up, or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from app.audit.finding import Change, Hit
from app.audit.reading import block, whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import ACCELERATE, distributed_type, fsdp_block, is_whole, near, processes
from app.audit.torch.effective import AXES, mesh, number

ROOT = "parallelism_config"
PREFIX = f"{ROOT}_"
SIZES = tuple(f"{axis}_size" for axis in AXES)
KNOWN = frozenset({
    *SIZES, "cp_backend", "cp_comm_strategy", "sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation",
})  # fmt: skip
CHOICES = {"cp_backend": ("torch",), "cp_comm_strategy": ("allgather", "alltoall"), "sp_backend": ("deepspeed",)}


def _given(subject: Subject) -> Mapping[str, Any]:
    """The block, where accelerate hands it on."""
    return block(subject.config, ROOT) if is_whole(subject) else {}


def _product(sizes: Mapping[str, int]) -> str:
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) + f" = {prod(sizes.values())}"


@rule(
    "AC004",
    Card(
        title="Keys of parallelism_config without their prefix",
        severity="warning",
        effect="ignored",
        why="Keys of this block are copied as they are, and only those that start with parallelism_config_ are read. "
        "Others are dropped without a word, and the job runs as plain FSDP.",
        fix="Write parallelism_config_dp_shard_size and so on.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def unprefixed(subject: Subject) -> Iterator[Hit]:
    """A size that stays at 1."""
    for key, value in _given(subject).items():
        name = str(key)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in KNOWN:
            continue
        meant = near(name.removeprefix(PREFIX), KNOWN)
        drop = Change(path=(ROOT, name), remove=True)
        yield Hit(
            path=f"{ROOT}.{name}",
            message=f"{name} is dropped" + (f"; {PREFIX}{meant} was meant" if meant else ""),
            changes=(drop, Change(path=(ROOT, PREFIX + meant), value=value)) if meant else (drop,),
        )


@rule(
    "AC005",
    Card(
        title="A size that is no whole number from 1",
        severity="error",
        effect="fails",
        why="Sizes are read by int() and must be at least 1.",
        fix="Write a whole number, 1 for an axis that is not used.",
        source="accelerate-parallelism",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def no_size(subject: Subject) -> Iterator[Hit]:
    """Zero, a fraction, or text."""
    for name in SIZES:
        key = PREFIX + name
        if key not in (given := _given(subject)):
            continue
        said = given[key]
        # What is compared before it becomes text must be a number; the rest may be digits in quotes.
        digits = isinstance(said, str) and (number(said) or 0) > 0 and name not in ("cp_size", "sp_size")
        if not digits and (isinstance(said, float) or (whole(said) or 0) < 1):
            yield Hit(
                path=f"{ROOT}.{key}", message=f"{said!r} is no size", changes=(Change(path=(ROOT, key), value=max(whole(said) or 1, 1)),)
            )


@rule(
    "AC006",
    Card(
        title="A backend or strategy that accelerate has not",
        severity="error",
        effect="fails",
        why="ParallelismConfig raises ValueError for other names.",
        fix="Use one of the names.",
        source="accelerate-parallelism",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def no_choice(subject: Subject) -> Iterator[Hit]:
    """A name nobody knows."""
    given, sizes = _given(subject), mesh(subject)
    for name, choices in CHOICES.items():
        said = given.get(PREFIX + name, choices[0])
        # The strategy is passed on only where sequences are split.
        if said not in choices and not (name == "cp_comm_strategy" and sizes["cp"] == 1):
            yield Hit(
                path=f"{ROOT}.{PREFIX}{name}",
                message=f"{said!r} is none of {', '.join(choices)}",
                changes=(Change(path=(ROOT, PREFIX + name), value=choices[0]),),
            )


@rule(
    "AC007",
    Card(
        title="Sizes that do not multiply to the number of processes",
        severity="error",
        effect="fails",
        why="Every process has one place in the mesh, so the product of the sizes is num_processes; "
        "Accelerator raises ValueError otherwise.",
        fix="Choose dp_shard_size = num_processes / the other sizes.",
        source="accelerate-parallelism",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def wrong_product(subject: Subject) -> Iterator[Hit]:
    """A mesh with too many places, or too few."""
    sizes, ranks = mesh(subject), processes(subject)
    if not _given(subject) or ranks is None or prod(sizes.values()) in (1, ranks) or sizes["sp"] > 1:
        return
    others = prod(size for axis, size in sizes.items() if axis != "dp_shard")
    mend = Change(path=(ROOT, f"{PREFIX}dp_shard_size"), value=ranks // others)
    # A shard of one rank is refused unless sequences are split over the rest.
    divides = ranks % others == 0 and (ranks // others > 1 or sizes["cp"] > 1)
    yield Hit(path=ROOT, message=f"{_product(sizes)}, and there are {ranks} processes", changes=(mend,) if divides else ())


@rule(
    "AC008",
    Card(
        title="Axes that exclude each other",
        severity="error",
        effect="fails",
        why="ParallelismConfig raises ValueError for context parallelism with sequence parallelism, and for tensor or context parallelism "
        "with copies that are not sharded.",
        fix="Keep one of cp_size and sp_size; with tp_size or cp_size and dp_replicate_size, set dp_shard_size above 1.",
        source="accelerate-parallelism",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def excluding_axes(subject: Subject) -> Iterator[Hit]:
    """Two ways to split that cannot be had together."""
    sizes = mesh(subject)
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        yield Hit(
            path=f"{ROOT}.{PREFIX}sp_size",
            message=f"cp_size {sizes['cp']} and sp_size {sizes['sp']} both split sequences",
            changes=(Change(path=(ROOT, f"{PREFIX}sp_size"), value=1),),
        )
    if (sizes["tp"] > 1 or sizes["cp"] > 1) and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1:
        rep = sizes["dp_replicate"]
        yield Hit(
            path=f"{ROOT}.{PREFIX}dp_replicate_size",
            message=f"{rep} copies with dp_shard_size 1 and tp_size {sizes['tp']}, cp_size {sizes['cp']}",
            changes=(
                Change(path=(ROOT, f"{PREFIX}dp_replicate_size"), value=1),
                Change(path=(ROOT, f"{PREFIX}dp_shard_size"), value=rep),
            ),
        )


@rule(
    "AC009",
    Card(
        title="Nothing for FSDP2 to shard over",
        severity="error",
        effect="fails",
        why="FSDP2 shards over dp_shard and cp; where both are 1 Accelerator raises ValueError.",
        fix="Give dp_shard_size the ranks, or use distributed_type: MULTI_GPU.",
        source="accelerate-parallelism",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def no_shards(subject: Subject) -> Iterator[Hit]:
    """Copies only."""
    found, sizes = fsdp_block(subject), mesh(subject)
    if found is None or found.version != 2 or not _given(subject) or prod(sizes.values()) == 1:
        return
    if sizes["dp_shard"] > 1 or sizes["cp"] > 1:
        return
    mend: tuple[Change, ...] = ()
    if sizes["dp_replicate"] > 1:
        mend = (
            Change(path=(ROOT, f"{PREFIX}dp_replicate_size"), value=1),
            Change(path=(ROOT, f"{PREFIX}dp_shard_size"), value=sizes["dp_replicate"]),
        )
    yield Hit(path=f"{ROOT}.{PREFIX}dp_shard_size", message=f"{_product(sizes)} leaves dp_shard_size and cp_size at 1", changes=mend)


@rule(
    "AC010",
    Card(
        title="parallelism_config under FSDP1",
        severity="error",
        effect="fails",
        why="Meshes are for FSDP2. The launcher's check is over before the YAML is read, so the processes start, and Accelerator "
        "raises ValueError in each of them.",
        fix="Write fsdp_version: 2.",
        source="accelerate-parallelism",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def mesh_without_v2(subject: Subject) -> Iterator[Hit]:
    """A mesh that FSDP1 has no use for."""
    found, sizes = fsdp_block(subject), mesh(subject)
    if found is not None and found.version == 1 and prod(sizes.values()) > 1:
        yield Hit(path=ROOT, message=f"{_product(sizes)} under FSDP1", changes=(found.put("version", 2),))


@rule(
    "AC011",
    Card(
        title="Split sequences under the wrong backend",
        severity="warning",
        effect="fails",
        why="Context parallelism is torch's and needs FSDP2; sequence parallelism is DeepSpeed's ALST and needs DeepSpeed 0.18.2 or newer.",
        fix="Use cp_size with distributed_type: FSDP, and sp_size with distributed_type: DEEPSPEED.",
        source="accelerate-parallelism",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def wrong_backend(subject: Subject) -> Iterator[Hit]:
    """The other framework's way to split."""
    sizes, kind = mesh(subject), distributed_type(subject)
    if sizes["cp"] > 1 and sizes["sp"] == 1 and kind == "DEEPSPEED":
        yield Hit(
            path=f"{ROOT}.{PREFIX}cp_size",
            message=f"cp_size {sizes['cp']} under DeepSpeed",
            changes=(Change(path=(ROOT, f"{PREFIX}cp_size"), value=1), Change(path=(ROOT, f"{PREFIX}sp_size"), value=sizes["cp"])),
        )
    if sizes["sp"] > 1 and sizes["cp"] == 1 and kind == "FSDP":
        yield Hit(
            path=f"{ROOT}.{PREFIX}sp_size",
            message=f"sp_size {sizes['sp']} under FSDP",
            changes=(Change(path=(ROOT, f"{PREFIX}sp_size"), value=1), Change(path=(ROOT, f"{PREFIX}cp_size"), value=sizes["sp"])),
        )


@rule(
    "AC012",
    Card(
        title="Tensor parallelism that does not divide the heads",
        severity="warning",
        effect="fails",
        why="Each rank of a tensor-parallel group takes whole heads of attention, of keys and values too.",
        fix="Choose a tp_size that divides num_key_value_heads and stays inside a node.",
        source="megatron",
        kinds=ACCELERATE,
        needs=("model",),
        library="accelerate",
    ),
)
def undivided_heads(subject: Subject) -> Iterator[Hit]:
    """Half a head."""
    size, model = mesh(subject)["tp"], subject.model
    if model is None or size < 2 or not model.num_kv_heads:
        return
    path = f"{ROOT}.{PREFIX}tp_size"
    if model.num_heads % size or model.num_kv_heads % size:
        yield Hit(path=path, message=f"tp_size {size} does not divide {model.num_heads} heads and {model.num_kv_heads} of keys and values")
    elif subject.cluster is not None and size > subject.cluster.gpus_per_node:
        yield Hit(path=path, message=f"tp_size {size} leaves a node of {subject.cluster.gpus_per_node} GPUs", effect="slow")
