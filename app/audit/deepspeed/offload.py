"""Rules about offload to host memory: what is ignored, what is refused, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.deepspeed.common import DS, drop, edit, gb
from app.audit.deepspeed.effective import clipping, runs_bf16_optimizer
from app.audit.deepspeed.optimizer import client_name
from app.audit.deepspeed.view import OPTIMIZER, PARAM, View
from app.audit.finding import Hit
from app.audit.reading import at, has
from app.audit.registry import Card, rule
from app.audit.subject import Subject

SUPER, RATIO = f"{OPTIMIZER}.super_offload", f"{OPTIMIZER}.ratio"
OLD_KEYS = {OPTIMIZER: "zero_optimization.cpu_offload", PARAM: "zero_optimization.cpu_offload_param"}
CPU_ADAM = ("deepspeedcpuadam", "cpuadam", "deepspeedcpulion", "cpulion", "zenflowcpuadam")
HOST_SHARE = 0.9
"""Of a node's memory; the rest is the system's, the dataloaders' and the page cache's."""


def place_of(view: View, path: str) -> str:
    """The key that asks for the offload: the block, or its deprecated form."""
    return path if view.written(path) else OLD_KEYS[path]


@rule("DS010", Card(title="SuperOffload with clipping", severity="warning", effect="slow", kinds=DS, source="ds-stage3",
                    why="SuperOffload steps the CPU asynchronously only where gradients are not clipped, and they are clipped to 1.0 "
                        "by default.",
                    fix="gradient_clipping 0, or no super_offload"))  # fmt: skip
def super_offload_clips(subject: Subject) -> Iterator[Hit]:
    """The default that switches off the main benefit."""
    view = View(subject)
    norm = clipping(view)
    if view.stage == 3 and view.device(OPTIMIZER) != "none" and view.on(SUPER) and norm != 0:
        stated = "" if has(view.config, "gradient_clipping") else " by default"
        yield Hit(path="gradient_clipping", message=f"Gradients are clipped to {norm if norm is not None else 'a norm'}{stated}, so "
                                                    f"SuperOffload waits for the whole norm.",
                  changes=(edit("gradient_clipping", 0.0),))  # fmt: skip


@rule("DS011", Card(title="offload option of stage 3", severity="error", effect="fails", kinds=DS, source="ds-zero-config",
                    why="A ratio below 1 is refused at any stage but 3; super_offload is ignored there, and runs on CUDA only.",
                    fix="stage 3, or remove the key"))  # fmt: skip
def stage_3_offload_options(subject: Subject) -> Iterator[Hit]:
    """ratio and super_offload elsewhere."""
    view = View(subject)
    ratio = view.value(RATIO)
    if isinstance(ratio, (int, float)) and ratio < 1 and view.stage != 3:
        yield Hit(path=RATIO, message=f"ratio {ratio:g} needs stage 3, and the stage is {view.stage}.", changes=(drop(RATIO),))
    if view.on(SUPER) and view.stage != 3:
        yield Hit(path=SUPER, severity="warning", effect="ignored", changes=(drop(SUPER),),
                  message=f"super_offload is ignored at stage {view.stage}.")  # fmt: skip
    elif view.on(SUPER) and subject.cluster and subject.cluster.vendor not in ("", "nvidia"):
        yield Hit(path=SUPER, message=f"super_offload runs on CUDA only, not on {subject.cluster.gpu_name}.", changes=(drop(SUPER),))


@rule("DS012", Card(title="ratio without effect", severity="warning", effect="ignored", kinds=DS, source="ds-stage3", needs=("model",),
                    why="Whole sub-groups stay on the GPU, the first int((1 - ratio) × n) of n; with few of them that is none.",
                    fix="lower sub_group_size to a tenth of the shard"))  # fmt: skip
def ratio_without_effect(subject: Subject) -> Iterator[Hit]:
    """Partial offload whose GPU part rounds to zero."""
    view, model = View(subject), subject.model
    ratio, shards = view.value(RATIO), view.shards
    if view.stage != 3 or model is None or not shards or not isinstance(ratio, (int, float)) or not ratio < 1:
        return
    if view.device(OPTIMIZER) == "none":
        return
    shard, size = -(-model.trainable_params // shards), view.number("zero_optimization.sub_group_size")
    groups = max(1, -(-shard // size)) if size else 2
    if int((1 - ratio) * groups) == 0 and size:
        enough = max(1, int(shard * (1 - ratio) / 2))
        yield Hit(path=RATIO, message=f"{shard:,} elements make {groups} sub-group(s) of {size:,}; int({1 - ratio:.2g} × {groups}) = "
                                      f"0 stay on the GPU.",
                  changes=(edit("zero_optimization.sub_group_size", min(enough, max(1, shard // 10))),))  # fmt: skip


@rule("DS013", Card(title="parameter offload that is ignored", severity="warning", effect="ignored", kinds=DS, source="ds-zero-config",
                    why="offload_param works at stage 3 only; below, it is parsed and the weights stay on every GPU.",
                    fix="stage 3, or delete the block"))  # fmt: skip
def ignored_parameter_offload(subject: Subject) -> Iterator[Hit]:
    """offload_param at stages 0 to 2."""
    view = View(subject)
    if view.stage < 3 and view.device(PARAM) != "none":
        model = subject.model
        stays = f": 2 × {model.total_params:,} = {gb(2 * model.total_params)} of weights stay on each GPU" if model else ""
        place = place_of(view, PARAM)
        yield Hit(path=place, message=f"offload_param is ignored at stage {view.stage}{stays}.", changes=(drop(place),))


@rule("DS016", Card(title="optimizer offload without ZeRO", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="At stage 0 the engine still picks DeepSpeedCPUAdam, whose parameters must be on the CPU, and they are on the GPU.",
                    fix="stage 1 or more"))  # fmt: skip
def offload_at_stage_0(subject: Subject) -> Iterator[Hit]:
    """offload_optimizer at stage 0."""
    view = View(subject)
    if view.stage == 0 and view.device(OPTIMIZER) != "none":
        place = place_of(view, OPTIMIZER)
        yield Hit(path=place, message=f"offload_optimizer is {view.device(OPTIMIZER)} at stage 0.", changes=(drop(place),))


@rule("DS038", Card(title="offload with the script's own optimizer", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    launchers=frozenset({"deepspeed"}),
                    why="With optimizer offload the engine insists on DeepSpeedCPUAdam or CPULion and raises ZeRORuntimeException for "
                        "any other.",
                    fix="name the optimizer in the file, or write zero_force_ds_cpu_optimizer false"))  # fmt: skip
def client_optimizer_offloaded(subject: Subject) -> Iterator[Hit]:
    """A client optimizer beside offload_optimizer."""
    view = View(subject)
    name = client_name(subject)
    if not name or view.optimizer or view.stage == 0 or view.device(OPTIMIZER) == "none":
        return
    if name not in CPU_ADAM and view.on("zero_force_ds_cpu_optimizer"):
        yield Hit(path="zero_force_ds_cpu_optimizer", changes=(edit("zero_force_ds_cpu_optimizer", False),),
                  message=f"The script hands over {subject.client_optimizer}, and offload_optimizer is "
                          f"{view.device(OPTIMIZER)}.")  # fmt: skip


def host_bytes_of(view: View) -> tuple[float, str]:
    """Host memory of one node for offloaded states, and the arithmetic; without rounding of pinned blocks."""
    model, cluster, shards = view.subject.model, view.subject.cluster, view.shards
    if model is None or cluster is None or not shards:
        return 0.0, ""
    parameters = view.stage == 3 and view.device(PARAM) == "cpu"
    per = 20 if parameters or (view.stage < 3 and _accumulates(view)) else 18
    local = min(cluster.gpus_per_node, shards)
    frozen = 2 * model.frozen_params * local / shards if parameters else 0.0
    total = per * model.trainable_params * local / shards + frozen
    extra = f" + {gb(frozen)} frozen" if frozen else ""
    return total, f"{per} × {model.trainable_params:,} × {local} / {shards}{extra} = {gb(total)}"


def _accumulates(view: View) -> bool:
    accum = at(view.config, "gradient_accumulation_steps")
    return isinstance(accum, (int, float)) and not isinstance(accum, bool) and accum > 1


@rule("DS021", Card(title="offloaded states larger than host memory", severity="warning", effect="memory", kinds=DS, source="ds-stage12",
                    needs=("model", "cluster"), fix="more host memory or nodes, a smaller model, or NVMe at stage 3",
                    why="Masters, gradients, staging and moments take 18 bytes a parameter in host memory, 20 with accumulation or "
                        "offload_param; "
                        "page-locked blocks are rounded up to powers of two."))  # fmt: skip
def host_memory(subject: Subject) -> Iterator[Hit]:
    """Optimizer offload beside the memory of a node."""
    view, cluster = View(subject), subject.cluster
    if cluster is None or not cluster.host_bytes or view.stage == 0 or view.device(OPTIMIZER) != "cpu" or runs_bf16_optimizer(view):
        return
    needed, said = host_bytes_of(view)
    if needed > HOST_SHARE * cluster.host_bytes:
        yield Hit(path=place_of(view, OPTIMIZER), message=f"{said} of host memory a node, of {gb(cluster.host_bytes)}.")


@rule("DS062", Card(title="pinned memory by default", severity="warning", effect="memory", kinds=DS, source="torch-pinned", since="0.19.5",
                    needs=("model", "cluster"), fix="pin_memory false, or more host memory",
                    why="pin_memory is true since 0.19.5, and torch rounds each page-locked block up to a power of two: up to twice "
                        "the bytes."))  # fmt: skip
def pinned_by_default(subject: Subject) -> Iterator[Hit]:
    """An offload that fits, but not with every pinned block rounded up."""
    view, cluster = View(subject), subject.cluster
    path = f"{OPTIMIZER}.pin_memory"
    if cluster is None or not cluster.host_bytes or view.stage == 0 or view.device(OPTIMIZER) != "cpu" or view.set(path):
        return
    needed, _ = host_bytes_of(view)
    model, shards = subject.model, view.shards
    if model is None or not shards or not view.written(OPTIMIZER) or needed > HOST_SHARE * cluster.host_bytes:
        return
    local, shard = min(cluster.gpus_per_node, shards), model.trainable_params / shards
    pinned = (4, 4, 2) if view.stage < 3 else (4, 2)
    rounding = local * sum(2 ** (int(size * shard) - 1).bit_length() - size * shard for size in pinned if size * shard > 1)
    if needed + rounding > HOST_SHARE * cluster.host_bytes:
        yield Hit(path=path, changes=(edit(path, False),),
                  message=f"Pinned blocks round {gb(needed)} up by {gb(rounding)}, and a node has {gb(cluster.host_bytes)}.")  # fmt: skip


@rule("DS084", Card(title="offload that is not needed", severity="warning", effect="slow", kinds=DS, source="zero-offload",
                    needs=("model", "cluster"), fix="remove the offload",
                    why="Every optimizer step waits for the copies over PCIe and for the CPU; where the states fit on the GPUs "
                        "nothing is gained."))  # fmt: skip
def offload_not_needed(subject: Subject) -> Iterator[Hit]:
    """States that take less than half of the GPU without offload."""
    view, model, cluster, shards = View(subject), subject.model, subject.cluster, View(subject).shards
    if model is None or cluster is None or not shards or view.stage == 0:
        return
    places = [place_of(view, path) for path in (OPTIMIZER, PARAM) if view.device(path) != "none" and (path == OPTIMIZER or view.stage == 3)]
    frozen = model.frozen_params * (2 if model.base_bits is None else model.base_bits / 8)
    weights = 2 * model.trainable_params + frozen
    resident = (weights / shards if view.stage == 3 else weights) + 14 * model.trainable_params / shards
    if places and resident < 0.5 * cluster.gpu_bytes:
        yield Hit(path=places[0], changes=tuple(drop(place) for place in places),
                  message=f"All states take {gb(resident)} on each GPU of {gb(cluster.gpu_bytes)} without offload.")  # fmt: skip
