"""Rules about ZeRO's stages: keys that another stage reads, reductions, ZeRO++ and saving."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.deepspeed.common import DS, drop, edit, gb
from app.audit.deepspeed.keys import known_keys
from app.audit.deepspeed.view import OPTIMIZER, PARAM, ZERO, View
from app.audit.finding import Hit
from app.audit.reading import at, has, whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject

ONLY_AT_3 = (
    "sub_group_size", "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients", "leaf_module", "memory_efficient_linear", "pipeline_loading_checkpoint", "override_module_apply",
    "log_trace_cache_warnings", "enable_sanity_checks", "save_muon_momentum_buffer_in_memory",
)  # fmt: skip
HPZ, QWZ, QGZ = (f"{ZERO}.zero_{name}" for name in ("hpz_partition_size", "quantized_weights", "quantized_gradients"))
SCATTER = f"{ZERO}.reduce_scatter"
GATHER = f"{ZERO}.stage3_gather_16bit_weights_on_model_save"


@rule("DS028", Card(title="overlap that is off by default", severity="info", effect="slow", kinds=DS, source="ds-zero-config",
                    why="overlap_comm defaults to true at stage 3 only; with it a second bucket is held at stage 1 and 2.",
                    fix="state overlap_comm"))  # fmt: skip
def overlap_default(subject: Subject) -> Iterator[Hit]:
    """Stage 1 or 2 without the key."""
    view = View(subject)
    path = f"{ZERO}.overlap_comm"
    if view.stage in (1, 2) and not view.set(path):
        bucket = view.number(f"{ZERO}.reduce_bucket_size")
        yield Hit(path=path, changes=(edit(path, False),),
                  message=f"overlap_comm is left out, which is false at stage {view.stage}; true would hold a second bucket of "
                          f"{bucket:,} elements.")  # fmt: skip


@rule("DS029", Card(title="stage 2 reduces at every micro-step", severity="info", effect="slow", kinds=DS, source="ds-stage12",
                    needs=("model", "cluster"), fix="stage 1, or engine.coalesce_grad_reduction",
                    why="Stage 2 all-reduces the gradients of each micro-step; stage 1 does so once per optimizer step."))  # fmt: skip
def stage_2_accumulates(subject: Subject) -> Iterator[Hit]:
    """Gradient accumulation over a network at stage 2."""
    view, model, cluster = View(subject), subject.model, subject.cluster
    accum = whole(at(view.config, "gradient_accumulation_steps"))
    accum = accum or (subject.training.grad_accum if subject.training else None) or 1
    if view.stage != 2 or accum < 2 or model is None or cluster is None or cluster.nodes < 2:
        return
    moved = (2 * accum + 1) * 2 * model.trainable_params
    yield Hit(path=f"{ZERO}.stage", message=f"(2 × {accum} + 1) × 2 × {model.trainable_params:,} = {gb(moved)} cross the network in a "
                                            f"step; "
                                            f"stage 1 moves {gb(6 * model.trainable_params)}.")  # fmt: skip


@rule("DS030", Card(title="key that changes nothing", severity="info", effect="ignored", kinds=DS, source="ds-stage12",
                    why="Gathering parameters at stage 1 and 2 is one call on every current torch; nothing reads these keys.",
                    fix="remove it"))  # fmt: skip
def inert_keys(subject: Subject) -> Iterator[Hit]:
    """The allgather keys; an odd bucket size is refused all the same."""
    view = View(subject)
    size = f"{ZERO}.allgather_bucket_size"
    if view.set(size) and view.stage in (1, 2) and view.number(size) % 2:
        yield Hit(path=size, severity="error", effect="fails", changes=(drop(size),), fix="remove it, or write an even number",
                  message=f"allgather_bucket_size {view.number(size):,} is odd, which stage {view.stage} refuses.",
                  why="The optimizer asserts that the size is even, and then never uses it.")  # fmt: skip
    elif view.written(size) and not view.config_has_zenflow:
        yield Hit(path=size, message="allgather_bucket_size changes nothing: parameters are gathered in one call.", changes=(drop(size),))
    for path in (f"{ZERO}.allgather_partitions", "disable_allgather"):
        if has(view.config, path):
            yield Hit(path=path, message=f"{path.rpartition('.')[2]} changes nothing.", changes=(drop(path),))


@rule("DS031", Card(title="key of stage 3 at another stage", severity="warning", effect="ignored", kinds=DS, source="ds-zero-config",
                    why="Only stage 3 reads the key.", fix="stage 3, or remove the key"))  # fmt: skip
def stage_3_keys(subject: Subject) -> Iterator[Hit]:
    """Keys that are parsed and never looked at; those that hold the default say nothing."""
    view = View(subject)
    if view.stage >= 3:
        return
    for path, known in known_keys().items():
        if known.block != ZERO or not (known.name.startswith("stage3_") or known.name in ONLY_AT_3) or not view.set(path):
            continue
        if view.value(path) in (known.default(view.release), False) or not known.known_to(view.release):
            continue
        name = view.name_of(path)
        yield Hit(
            path=name, message=f"{name.rpartition('.')[2]} is read at stage 3 only, and the stage is {view.stage}.", changes=(drop(name),)
        )


@rule("DS032", Card(title="round_robin_gradients without use", severity="info", effect="ignored", kinds=DS, source="ds-stage12",
                    why="It spreads the copies of gradients to the host over the ranks: stages 1 and 2 with optimizer offload.",
                    fix="remove it"))  # fmt: skip
def round_robin(subject: Subject) -> Iterator[Hit]:
    """At stage 3, or without offload."""
    view, path = View(subject), f"{ZERO}.round_robin_gradients"
    if view.on(path) and (view.stage not in (1, 2) or view.device(OPTIMIZER) == "none"):
        why = f"stage {view.stage} does not read it" if view.stage not in (1, 2) else "nothing is offloaded"
        yield Hit(path=path, message=f"round_robin_gradients has no use here: {why}.", changes=(drop(path),))


@rule("DS033", Card(title="hpZ group that does not suit the ranks", severity="warning", effect="memory", kinds=DS, source="ds-groups",
                    why="hpZ keeps a second copy of the weights in each group, so that backward gathers stay inside a node. "
                        "The group must divide the ranks, and helps only where it is one node of several.",
                    fix="zero_hpz_partition_size = GPUs per node"))  # fmt: skip
def hpz_group(subject: Subject) -> Iterator[Hit]:
    """A group that does not divide, that is the whole job, or that crosses nodes."""
    view, ranks, cluster = View(subject), View(subject).shards, subject.cluster
    size = view.number(HPZ)
    if view.stage != 3 or size < 2 or ranks is None:
        return
    extra = _copy_costs(subject.model.total_params, min(size, ranks)) if subject.model else ""
    if size >= ranks:
        yield Hit(path=HPZ, message=f"hpZ group of {size} on {ranks} rank(s) is clamped to {ranks}: memory is paid and nothing is "
                                    f"gained{extra}.",
                  changes=(drop(HPZ),), fix="remove it; hpZ helps across nodes only")  # fmt: skip
    elif ranks % size:
        own = cluster.gpus_per_node if cluster and cluster.nodes > 1 and ranks % cluster.gpus_per_node == 0 else 0
        yield Hit(path=HPZ, severity="error", effect="fails", message=f"{ranks} ranks are not divisible by the hpZ group of {size}.",
                  changes=(edit(HPZ, own) if own > 1 else drop(HPZ),))  # fmt: skip
    elif cluster and cluster.nodes == 1:
        yield Hit(path=HPZ, message=f"hpZ on a single node keeps no traffic off a network{extra}.", changes=(drop(HPZ),), fix="remove it")
    elif cluster and size != cluster.gpus_per_node:
        yield Hit(path=HPZ, effect="slow", message=f"hpZ group of {size} is not the {cluster.gpus_per_node} GPUs of a node{extra}.",
                  changes=(edit(HPZ, cluster.gpus_per_node) if cluster.gpus_per_node > 1 else drop(HPZ),))  # fmt: skip


def _copy_costs(params: int, group: int) -> str:
    return f"; each GPU pays 2 × {params:,} / {group} = {gb(2 * params / group)}"


@rule("DS034", Card(title="quantized gradients that are not", severity="warning", effect="ignored", kinds=DS, source="zeropp",
                    why="qgZ is a two-hop exchange between nodes; on one node the ordinary reduce-scatter runs, and it needs "
                        "reduce_scatter.",
                    fix="remove zero_quantized_gradients"))  # fmt: skip
def quantized_gradients(subject: Subject) -> Iterator[Hit]:
    """On one node, or without reduce_scatter."""
    view = View(subject)
    if view.stage != 3 or not view.on(QGZ):
        return
    if not view.on(SCATTER):
        yield Hit(
            path=QGZ, severity="error", effect="fails", changes=(drop(QGZ),), message="zero_quantized_gradients needs reduce_scatter true."
        )
    elif subject.cluster and subject.cluster.nodes == 1:
        yield Hit(path=QGZ, message="zero_quantized_gradients does nothing on a single node.", changes=(drop(QGZ),))


@rule("DS035", Card(title="quantized weights with autocast", severity="error", effect="fails", kinds=DS, source="ds-stage3",
                    why="The engine asserts that zero_quantized_weights is off under torch_autocast.", fix="keep one of them"))  # fmt: skip
def quantized_with_autocast(subject: Subject) -> Iterator[Hit]:
    """qwZ and torch_autocast together."""
    view = View(subject)
    if view.stage == 3 and view.on(QWZ) and at(view.config, "torch_autocast.enabled") is True:
        yield Hit(path=QWZ, message="zero_quantized_weights and torch_autocast are both on.", changes=(drop(QWZ),))


@rule("DS036", Card(title="gradients scaled before a reduce-scatter", severity="error", effect="fails", kinds=DS, source="ds-stage12",
                    why="Stages 2 and 3 assert that gradients are not divided before the reduction while reduce_scatter is true.",
                    fix="remove prescale_gradients and gradient_predivide_factor"))  # fmt: skip
def prescaled(subject: Subject) -> Iterator[Hit]:
    """prescale_gradients or gradient_predivide_factor at stages 2 and 3."""
    view = View(subject)
    if view.stage < 2 or not view.on(SCATTER):
        return
    if view.on("prescale_gradients"):
        yield Hit(
            path="prescale_gradients", message=f"prescale_gradients is true at stage {view.stage}.", changes=(drop("prescale_gradients"),)
        )
    factor = view.value("gradient_predivide_factor")
    if isinstance(factor, (int, float)) and factor != 1.0:
        yield Hit(path="gradient_predivide_factor", changes=(drop("gradient_predivide_factor"),),
                  message=f"gradient_predivide_factor is {factor:g} at stage {view.stage}.")  # fmt: skip


@rule("DS047", Card(title="no gradient norm where it is needed", severity="error", effect="fails", kinds=DS, source="ds-zero-config",
                    since="0.19.7", fix="gradient_clipping 0 at stage 1 or 2 without offload, or leave the key out",
                    why="compute_grad_norm false needs stage 1 or 2, no clipping (1.0 by default), no offload and no "
                        "ZenFlow."))  # fmt: skip
def grad_norm_off(subject: Subject) -> Iterator[Hit]:
    """compute_grad_norm false with something that needs the norm."""
    view, path = View(subject), f"{ZERO}.compute_grad_norm"
    if view.on(path):
        return
    norm = view.value("gradient_clipping")
    reasons = [f"the stage is {view.stage}"] * (view.stage not in (1, 2)) + [f"gradients are clipped to {norm}"] * bool(norm)
    reasons += ["the optimizer is offloaded"] * (view.device(OPTIMIZER) != "none") + ["ZenFlow is on"] * view.config_has_zenflow
    if reasons:
        yield Hit(path=path, message=f"compute_grad_norm is false, but {' and '.join(reasons)}.", changes=(drop(path),))


@rule("DS049", Card(title="no weights at the end of stage 3", severity="warning", effect="ignored", kinds=DS, source="ds-engine",
                    why="Without the key save_16bit_model logs a line, returns False and writes nothing.",
                    fix="stage3_gather_16bit_weights_on_model_save true, or run zero_to_fp32.py on the checkpoint folder"))  # fmt: skip
def gather_on_save(subject: Subject) -> Iterator[Hit]:
    """Stage 3 without gathering on save: stated false, or left out under the Trainer, which calls it."""
    view = View(subject)
    old = view.on(f"{ZERO}.stage3_gather_fp16_weights_on_model_save")
    if view.stage != 3 or view.on(GATHER) or old:
        return
    stated = view.set(GATHER)
    yield Hit(path=GATHER, changes=(edit(GATHER, True),), severity=None if stated or subject.launcher != "deepspeed" else "info",
              message="stage3_gather_16bit_weights_on_model_save is false" + ("" if stated else " by default") + ", so no 16-bit "
                                                                                                                 "weights are written "
                                                                                                                 "on save.")  # fmt: skip


@rule("DS089", Card(title="old stage 1", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="legacy_stage1 was removed; the engine raises an Exception.", fix="remove it"))  # fmt: skip
def legacy_stage_1(subject: Subject) -> Iterator[Hit]:
    """legacy_stage1 true."""
    path = f"{ZERO}.legacy_stage1"
    if View(subject).on(path):
        yield Hit(path=path, message="legacy_stage1 is no longer there.", changes=(drop(path),))


@rule("DS076", Card(title="hpZ with offloaded parameters", severity="warning", effect="memory", kinds=DS, source="zeropp",
                    why="The secondary copy lives on the GPU, which offload_param was to keep free of weights.",
                    fix="one of them"))  # fmt: skip
def hpz_with_offload(subject: Subject) -> Iterator[Hit]:
    """hpZ beside offload_param."""
    view = View(subject)
    if view.stage == 3 and view.number(HPZ) > 1 and view.device(PARAM) != "none":
        yield Hit(
            path=HPZ, message="zero_hpz_partition_size keeps weights on the GPU that offload_param takes off it.", changes=(drop(HPZ),)
        )


@rule("DS077", Card(title="hpZ with a second engine", severity="info", effect="changed", kinds=DS, source="ds-groups",
                    why="The groups of hpZ are made once in a process: a second engine (reward model, vision tower) reuses those of "
                        "the first, "
                        "and older releases stop with an AssertionError.",
                    fix="build one engine only, or leave hpZ out"))  # fmt: skip
def hpz_second_engine(subject: Subject) -> Iterator[Hit]:
    """A note; a warning where the model is made of separately loaded parts."""
    view = View(subject)
    if view.stage == 3 and view.number(HPZ) > 1:
        parts = subject.model is not None and subject.model.multimodal
        yield Hit(path=HPZ, severity="warning" if parts else None, message="A second engine in this process would use the hpZ groups "
                                                                           "of the first.",
                  changes=(drop(HPZ),))  # fmt: skip


@rule("DS088", Card(title="summed gradients where they cannot be", severity="error", effect="fails", kinds=DS, source="ds-config",
                    since="0.19.6", fix="gradient_allreduce_op mean",
                    why="gradient_allreduce_op sum is refused at stage 3, with ZenFlow and with DeepCompile."))  # fmt: skip
def summed_gradients(subject: Subject) -> Iterator[Hit]:
    """sum at stage 3, with ZenFlow or DeepCompile."""
    view = View(subject)
    if view.value("gradient_allreduce_op") != "sum":
        return
    reasons = ["stage 3"] * (view.stage == 3) + ["ZenFlow"] * view.config_has_zenflow + ["DeepCompile"] * view.on("compile.deepcompile")
    if reasons:
        yield Hit(path="gradient_allreduce_op", message=f"gradient_allreduce_op is sum with {' and '.join(reasons)}.",
                  changes=(edit("gradient_allreduce_op", "mean"),))  # fmt: skip


@rule("DS091", Card(title="own accumulation with what it excludes", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    since="0.19.4", fix="managed_gradient_accumulation true",
                    why="managed_gradient_accumulation false allows overlap_comm at stage 2 and 3 only, no pipeline and no "
                        "DeepCompile."))  # fmt: skip
def own_accumulation(subject: Subject) -> Iterator[Hit]:
    """managed_gradient_accumulation false with overlap at stage 0 or 1, a pipeline or DeepCompile."""
    view, path = View(subject), "managed_gradient_accumulation"
    if view.on(path):
        return
    reasons = ["overlap_comm at a stage below 2"] * (view.stage < 2 and bool(view.value(f"{ZERO}.overlap_comm")))
    reasons += ["a pipeline"] * (subject.degrees.pipeline_parallel > 1) + ["DeepCompile"] * view.on("compile.deepcompile")
    if reasons:
        yield Hit(path=path, message=f"managed_gradient_accumulation is false with {' and '.join(reasons)}.", changes=(drop(path),))
