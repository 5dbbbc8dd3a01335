"""Rules about swapping to drives."""

from __future__ import annotations

import math
from collections.abc import Iterator

from app.audit.deepspeed.common import DS, drop, edit, gb
from app.audit.deepspeed.effective import runs_bf16_optimizer
from app.audit.deepspeed.view import OPTIMIZER, PARAM, ZERO, View
from app.audit.finding import Hit
from app.audit.reading import has
from app.audit.registry import Card, rule
from app.audit.subject import Subject

SUB_GROUP = f"{ZERO}.sub_group_size"
SMALL_GROUP = 100_000_000
POOL = 4_000_000_000
"""Bytes of a parameter pool on each rank from which a node is likely to feel it; the default is 1e9."""
STATES = {"lion": 3, "adagrad": 3, "sgd": 2}
"""Tensors an optimizer swaps, parameter and gradient included; Adam's are four."""
SHARED_PATHS = ("/mnt/nfs", "/nfs", "/lustre", "/gpfs", "/efs", "/fsx", "s3:", "gs:")


@rule("DS014", Card(title="NVMe optimizer offload below stage 3", severity="warning", effect="changed", kinds=DS, source="ds-stage12",
                    why="At stage 1 and 2 the device nvme is plain CPU offload; at stage 1 with fp32 accumulation nothing is offloaded.",
                    fix="stage 3, or device cpu"))  # fmt: skip
def nvme_below_stage_3(subject: Subject) -> Iterator[Hit]:
    """A drive that is never written to."""
    view = View(subject)
    if view.stage in (1, 2) and view.device(OPTIMIZER) == "nvme":
        becomes = "no offload at all" if runs_bf16_optimizer(view) else "offload to host memory"
        yield Hit(path=f"{OPTIMIZER}.device", message=f"Device nvme at stage {view.stage} is {becomes}.",
                  changes=(edit(f"{OPTIMIZER}.device", "cpu"),))  # fmt: skip


@rule("DS015", Card(title="no path to the drive", severity="error", effect="fails", kinds=DS, source="ds-swap",
                    why="Device nvme needs a folder that every rank can write to, on a drive of its own node.",
                    fix="nvme_path, for example /local_nvme"))  # fmt: skip
def no_path(subject: Subject) -> Iterator[Hit]:
    """nvme without nvme_path, or with one on a shared file system."""
    view = View(subject)
    if view.stage != 3:
        return
    for block in (OPTIMIZER, PARAM):
        path = f"{block}.nvme_path"
        given = view.value(path)
        if view.device(block) != "nvme":
            continue
        if not given:
            what = "a bare TypeError from joining paths" if block == OPTIMIZER else "an AssertionError in zero.Init"
            yield Hit(
                path=path, message=f"{block.rpartition('.')[2]} is on nvme without nvme_path: {what}.", changes=(edit(path, "/local_nvme"),)
            )
        elif isinstance(given, str) and given.lower().startswith(SHARED_PATHS):
            yield Hit(path=path, severity="warning", effect="slow", changes=(edit(path, "/local_nvme"),),
                      message=f"nvme_path {given[:60]} looks shared between nodes; swapping needs a drive of the node itself.")  # fmt: skip


@rule("DS017", Card(title="swap buffer smaller than a parameter's shard", severity="error", effect="fails", kinds=DS, source="ds-swap",
                    needs=("model",), fix="raise offload_param.buffer_size",
                    why="A buffer holds one rank's shard of one parameter, so it must be as large as the largest: ceil(numel / "
                        "ranks)."))  # fmt: skip
def buffer_too_small(subject: Subject) -> Iterator[Hit]:
    """buffer_size beside the largest parameter, with this job's ranks."""
    view, model, shards = View(subject), subject.model, View(subject).shards
    if not view.swaps_parameters or model is None or not shards:
        return
    size, path = view.number(f"{PARAM}.buffer_size"), f"{PARAM}.buffer_size"
    shard = math.ceil(model.largest_param_numel / shards)
    if shard > size:
        yield Hit(path=path, message=f"ceil({model.largest_param_numel:,} / {shards}) = {shard:,} elements > buffer_size {size:,}.",
                  changes=(edit(path, shard),))  # fmt: skip


@rule("DS018", Card(title="too few swap buffers for the optimizer", severity="error", effect="fails", kinds=DS, source="ds-swap",
                    why="Adam swaps four tensors (parameter, gradient, two moments); reading or writing ahead needs those of another "
                        "tile, both of two.",
                    fix="raise offload_optimizer.buffer_count"))  # fmt: skip
def too_few_buffers(subject: Subject) -> Iterator[Hit]:
    """offload_optimizer.buffer_count below 4, 8 or 12."""
    view, path = View(subject), f"{OPTIMIZER}.buffer_count"
    if not view.swaps_optimizer:
        return
    ahead = view.on(f"{OPTIMIZER}.pipeline_read") + view.on(f"{OPTIMIZER}.pipeline_write")
    states = STATES.get(view.optimizer.lower(), 4)
    needed, count = states * (1 + ahead), view.number(path)
    if count < needed:
        piped = f", and {states} × {1 + ahead} = {needed} with pipelining" if ahead else ""
        yield Hit(path=path, message=f"buffer_count {count} is too few: the optimizer swaps {states} tensors of a tile{piped}.",
                  changes=(edit(path, needed),))  # fmt: skip


@rule("DS019", Card(title="swap buffers larger than host memory", severity="warning", effect="memory", kinds=DS, source="ds-swap",
                    needs=("model", "cluster"), fix="sub_group_size 1e8",
                    why="Each rank holds buffer_count tiles of fp32 in page-locked memory, and a flat buffer of its "
                        "gradients."))  # fmt: skip
def swap_memory(subject: Subject) -> Iterator[Hit]:
    """buffer_count × tile × 4 × GPUs of a node, and the gradients."""
    view, model, cluster, shards = View(subject), subject.model, subject.cluster, View(subject).shards
    if not view.swaps_optimizer or model is None or cluster is None or not cluster.host_bytes or not shards:
        return
    shard, count, local = model.trainable_params / shards, view.number(f"{OPTIMIZER}.buffer_count"), min(cluster.gpus_per_node, shards)
    tile = min(view.number(SUB_GROUP) or shard, shard)
    gradients = 2 ** (int(2 * shard)).bit_length() if view.on(f"{OPTIMIZER}.pin_memory") else 2 * shard
    needed = (count * tile * 4 + gradients) * local
    if needed > 0.9 * cluster.host_bytes:
        small = tile >= 2 * SMALL_GROUP
        yield Hit(path=SUB_GROUP, changes=(edit(SUB_GROUP, SMALL_GROUP),) if small else (),
                  message=f"({count} × {tile:,.0f} × 4 + {gb(gradients)} of gradients) × {local} = {gb(needed)} of host memory, of "
                          f"{gb(cluster.host_bytes)}.")  # fmt: skip


@rule("DS020", Card(title="parameters that never reach the drive", severity="warning", effect="ignored", kinds=DS, source="ds-swap",
                    needs=("model",), fix="lower max_in_cpu, to 0 for all",
                    why="Parameters stay in a CPU buffer until max_in_cpu elements of a rank are full; the default is 1e9."))  # fmt: skip
def nothing_on_drive(subject: Subject) -> Iterator[Hit]:
    """max_in_cpu of at least the rank's shard."""
    view, model, shards = View(subject), subject.model, View(subject).shards
    path = f"{PARAM}.max_in_cpu"
    if not view.swaps_parameters or model is None or not shards:
        return
    shard, kept = math.ceil(model.total_params / shards), view.number(path)
    if kept >= shard:
        yield Hit(path=path, message=f"max_in_cpu {kept:,} holds the whole shard of {model.total_params:,} / {shards} = {shard:,} "
                                     f"elements.",
                  changes=(edit(path, 0),))  # fmt: skip


@rule("DS060", Card(title="GPUDirect Storage that is not used", severity="info", effect="ignored", kinds=DS, source="ds-swap",
                    why="Only the swapper of parameters uses aio.use_gds; the optimizer's always copies through host memory.",
                    fix="remove use_gds"))  # fmt: skip
def unused_gds(subject: Subject) -> Iterator[Hit]:
    """use_gds with no parameters on a drive."""
    view = View(subject)
    if view.on("aio.use_gds") and not view.swaps_parameters:
        why = "only the optimizer is on a drive" if view.swaps_optimizer else "nothing is on a drive"
        yield Hit(path="aio.use_gds", message=f"use_gds is not used: {why}.", changes=(drop("aio.use_gds"),))


@rule("DS087", Card(title="fewer parameter buffers than parameters in "
                          "flight", severity="warning", effect="fails", kinds=DS, source="ds-swap",
                    needs=("model",), fix="raise buffer_count, or lower stage3_prefetch_bucket_size",
                    why="Prefetching reads parameters from the drive until the prefetch bucket is full, and each needs a buffer of "
                        "its own."))  # fmt: skip
def parameters_in_flight(subject: Subject) -> Iterator[Hit]:
    """The prefetch bucket in parameters of this model's usual matrix, hidden²."""
    view, model = View(subject), subject.model
    prefetch, path = view.value(f"{ZERO}.stage3_prefetch_bucket_size"), f"{PARAM}.buffer_count"
    if not view.swaps_parameters or model is None or not isinstance(prefetch, int) or model.hidden_size < 1:
        return
    matrix, count = model.hidden_size**2, view.number(path)
    flight = math.ceil(prefetch / matrix) + 2
    if flight > count:
        yield Hit(path=path, changes=(edit(path, flight),),
                  message=f"A prefetch of {prefetch:,} elements reads up to {flight - 2} matrices of {model.hidden_size:,}² ahead, "
                          f"with the module's own {flight} buffers; buffer_count is {count}.")  # fmt: skip


@rule("DS096", Card(title="aio block without a drive", severity="info", effect="ignored", kinds=DS, source="ds-swap",
                    why="Only offload to nvme at stage 3 reads the block.", fix="remove it"))  # fmt: skip
def unused_aio(subject: Subject) -> Iterator[Hit]:
    """aio with nothing on nvme."""
    view = View(subject)
    if has(view.config, "aio") and not view.swaps_optimizer and not view.swaps_parameters:
        yield Hit(path="aio", message="The aio block is not read: nothing is swapped to a drive.", changes=(drop("aio"),))


@rule("DS103", Card(title="large page-locked pool for parameters", severity="warning", effect="memory", kinds=DS, source="ds-swap",
                    fix="buffer_size of the largest shard, for example 1e8",
                    why="Each rank page-locks buffer_count × buffer_size × 2 bytes of host memory, and keeps up to max_in_cpu "
                        "elements there as well."))  # fmt: skip
def parameter_pool(subject: Subject) -> Iterator[Hit]:
    """A pool well above the default's 1 GB a rank, or above what the model needs."""
    view, model, shards, cluster = View(subject), subject.model, View(subject).shards, subject.cluster
    if not view.swaps_parameters:
        return
    count, size, path = view.number(f"{PARAM}.buffer_count"), view.number(f"{PARAM}.buffer_size"), f"{PARAM}.buffer_size"
    pool, kept = 2 * count * size, 2 * view.number(f"{PARAM}.max_in_cpu")
    least = max(SMALL_GROUP, math.ceil(model.largest_param_numel / shards)) if model and shards else SMALL_GROUP
    host = cluster.host_bytes / cluster.gpus_per_node if cluster and cluster.host_bytes else None
    if size > least and (pool > 0.2 * host if host else pool > POOL):
        yield Hit(path=path, changes=(edit(path, least),),
                  message=f"{count} × {size:,} × 2 bytes = {gb(pool)} are page-locked on each rank, beside up to {gb(kept)} of "
                          f"max_in_cpu.")  # fmt: skip
