"""Rules about bucket and group sizes, with this model's numbers."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.deepspeed.common import DS, edit, gb
from app.audit.deepspeed.view import AUTO, FROM_HIDDEN, HF, OPTIMIZER, ZERO, View
from app.audit.finding import Hit
from app.audit.reading import at
from app.audit.registry import Card, rule
from app.audit.subject import Subject

BUCKET, SUB_GROUP, REUSE = f"{ZERO}.reduce_bucket_size", f"{ZERO}.sub_group_size", f"{ZERO}.stage3_max_reuse_distance"
SMALLER, SMALL_GROUP, WIDE_LAYER = 100_000_000, 100_000_000, 40
"""Elements of a bucket and of a sub-group that cost little; hidden² that fit into an ordinary layer (12 to 20), doubled."""


@rule("DS026", Card(title="one large step of the optimizer", severity="warning", effect="memory", kinds=DS, source="ds-stage3",
                    needs=("model", "cluster"), fix="sub_group_size 1e8",
                    why="At stage 3 each sub-group is flattened and copied to fp32 when it is stepped: 6 bytes an element on top of "
                        "everything."))  # fmt: skip
def one_sub_group(subject: Subject) -> Iterator[Hit]:
    """A step peak of more than a tenth of the GPU, or above what is free."""
    view, model, cluster, shards = View(subject), subject.model, subject.cluster, View(subject).shards
    if view.stage != 3 or model is None or cluster is None or not shards or view.device(OPTIMIZER) != "none":
        return
    shard, size = model.trainable_params / shards, view.number(SUB_GROUP)
    spike = 6 * min(shard, size or shard)
    resident = (16 * model.trainable_params + 2 * model.frozen_params) / shards
    if shard > 2 * SMALL_GROUP and size > SMALL_GROUP and (spike > 0.1 * cluster.gpu_bytes or resident + spike > 0.8 * cluster.gpu_bytes):
        yield Hit(path=SUB_GROUP, changes=(edit(SUB_GROUP, SMALL_GROUP),),
                  message=f"The step copies 6 × {min(shard, size or shard):,.0f} = {gb(spike)} at once; sub-groups of 1e8 make that "
                          f"{gb(6 * SMALL_GROUP)}.")  # fmt: skip


@rule("DS027", Card(title="buckets that are large for this job", severity="info", effect="memory", kinds=DS, source="ds-stage12",
                    needs=("model", "cluster"), fix="reduce_bucket_size between 2e7 and 2e8",
                    why="The bucket is held in the gradients' dtype, twice with overlap at stage 1 and 2, and always at stage "
                        "3."))  # fmt: skip
def large_buckets(subject: Subject) -> Iterator[Hit]:
    """More than 5 % of the GPU, or more than a quarter of what is trained."""
    view, model, cluster = View(subject), subject.model, subject.cluster
    size = view.value(BUCKET)
    if view.stage == 0 or model is None or cluster is None or not isinstance(size, int):
        return
    double = 2 if view.stage < 3 and view.on(f"{ZERO}.overlap_comm") else 1
    held = size * (4 if view.precision == "fp32" else 2) * double
    if size > 20_000_000 and (held > 0.05 * cluster.gpu_bytes or size > model.trainable_params / 4):
        better = max(20_000_000, min(SMALLER, model.trainable_params // 8, int(0.02 * cluster.gpu_bytes / 4)))
        better -= better % 2
        than = f"{gb(held)} of {gb(cluster.gpu_bytes)}"
        if held <= 0.05 * cluster.gpu_bytes:
            than = f"{gb(held)}, and only {model.trainable_params:,} parameters are trained"
        yield Hit(
            path=BUCKET, message=f"reduce_bucket_size {size:,} holds {than}.", changes=(edit(BUCKET, better),) if better < size else ()
        )


@rule("DS056", Card(title="stage 3 that keeps the whole model", severity="warning", effect="memory", kinds=DS, source="ds-coordinator",
                    needs=("model", "cluster"), fix="lower stage3_max_reuse_distance",
                    why="Parameters whose next use is within stage3_max_reuse_distance elements are not released after forward; "
                        "around the turn to backward that is about half the distance."))  # fmt: skip
def kept_after_forward(subject: Subject) -> Iterator[Hit]:
    """A model within half the reuse distance, whose gathered weights are a good part of the GPU."""
    view, model, cluster = View(subject), subject.model, subject.cluster
    if view.stage != 3 or model is None or cluster is None:
        return
    distance, held = view.number(REUSE), 2 * model.total_params
    if model.total_params <= distance / 2 and held > 0.1 * cluster.gpu_bytes:
        yield Hit(path=REUSE, changes=(edit(REUSE, max(0, model.total_params // 4)),),
                  message=f"All {model.total_params:,} parameters are within {distance:,} / 2, so {gb(held)} stay gathered through "
                          f"forward.")  # fmt: skip


@rule("DS057", Card(title="three gathers of each "
                          "layer", severity="info", effect="slow", kinds=DS, source="ds-coordinator", needs=("model", "training"),
                    why="A reuse distance below a layer lets recomputation and backward each gather the layer again.",
                    fix="keep stage3_max_reuse_distance at a layer's parameters at least"))  # fmt: skip
def gathered_thrice(subject: Subject) -> Iterator[Hit]:
    """Full checkpointing and a reuse distance smaller than a block."""
    view, model, training = View(subject), subject.model, subject.training
    if view.stage != 3 or model is None or training is None or training.activation_checkpointing != "full" or model.num_layers < 1:
        return
    layer, distance = model.total_params // model.num_layers, view.number(REUSE)
    if view.set(REUSE) and distance < layer:
        yield Hit(path=REUSE, changes=(edit(REUSE, 2 * layer),),
                  message=f"stage3_max_reuse_distance {distance:,} is less than a layer of {layer:,}: with checkpointing it is "
                          f"gathered up to three times.")  # fmt: skip


def _autos(view: View) -> list[str]:
    return [path for path in FROM_HIDDEN if view.raw(path) == AUTO and (view.stage == 3 or path == BUCKET)]


@rule("DS080", Card(title="auto buckets far too small", severity="warning", effect="slow", kinds=DS, source="hf-deepspeed", launchers=HF,
                    needs=("model",), fix="write 1e8",
                    why="auto is hidden², which is a poor measure where feed-forward and heads are wide: every matrix is reduced "
                        "alone."))  # fmt: skip
def auto_too_small(subject: Subject) -> Iterator[Hit]:
    """A dense layer of more than 40 hidden²."""
    view, model = View(subject), subject.model
    autos = _autos(view)
    if model is None or model.is_moe or not autos or min(model.hidden_size, model.num_layers) < 1 or view.stage == 0:
        return
    square = model.hidden_size**2
    layer = max(0, model.total_params - 2 * model.vocab_size * model.hidden_size) // model.num_layers
    if layer > WIDE_LAYER * square:
        sizes = {BUCKET: SMALLER, f"{ZERO}.stage3_prefetch_bucket_size": 50_000_000, f"{ZERO}.stage3_param_persistence_threshold": 100_000}
        yield Hit(path=autos[0], changes=tuple(edit(path, sizes[path]) for path in autos),
                  message=f"auto is {model.hidden_size:,}² = {square:,} elements, but a layer has {layer:,} parameters, "
                          f"{layer // square} times as many.")  # fmt: skip


@rule("DS081", Card(title="what auto "
                          "becomes", severity="info", effect="changed", kinds=DS, source="hf-deepspeed", launchers=HF, needs=("model",),
                    why="The launcher writes hidden², 0.9 × hidden² and 10 × hidden, from text_config where the model has parts; "
                        "a model without hidden_size needs numbers.",
                    fix="leave it, or write the numbers"))  # fmt: skip
def auto_becomes(subject: Subject) -> Iterator[Hit]:
    """The numbers, for this model."""
    view, model = View(subject), subject.model
    autos = _autos(view)
    if model is None or not autos or view.stage == 0:
        return
    said = ", ".join(f"{path.rpartition('.')[2]} {FROM_HIDDEN[path](model.hidden_size):,}" for path in autos)
    yield Hit(path=autos[0], message=f"auto becomes, for hidden size {model.hidden_size:,}: {said}.",
              changes=tuple(edit(path, FROM_HIDDEN[path](model.hidden_size)) for path in autos))  # fmt: skip


@rule("DS097", Card(title="live parameters that cap nothing resident", severity="info", effect="ignored", kinds=DS, source="ds-coordinator",
                    why="stage3_max_live_parameters only stops prefetching; nothing is released for it.",
                    fix="lower stage3_max_reuse_distance where memory is meant"))  # fmt: skip
def live_parameters(subject: Subject) -> Iterator[Hit]:
    """A live limit below the reuse distance, as it is written to save memory."""
    view, path = View(subject), f"{ZERO}.stage3_max_live_parameters"
    live, distance = view.number(path), view.number(REUSE)
    if view.stage == 3 and view.set(path) and not view.set(REUSE) and live < distance and at(view.config, path) != AUTO:
        yield Hit(path=path, changes=(edit(REUSE, live),),
                  message=f"stage3_max_live_parameters {live:,} does not release what stage3_max_reuse_distance {distance:,} "
                          f"keeps.")  # fmt: skip
