"""Rules about what a stage costs on these GPUs and this network, and about loading."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.deepspeed.common import DS, drop, edit, gb
from app.audit.deepspeed.special import frozen_bytes
from app.audit.deepspeed.view import OPTIMIZER, PARAM, ZERO, View
from app.audit.finding import Change, Hit
from app.audit.registry import Card, rule
from app.audit.subject import ModelFacts, Subject

STAGE, HPZ, INIT = f"{ZERO}.stage", f"{ZERO}.zero_hpz_partition_size", "zero_optimization"
ROOM = 0.7
"""Of the GPU for states, where the rest is left to activations."""
SLOW_STEP_S, FAST_NETWORK = 1.0, 50e9
"""What a micro-step may wait for gathers, and 400 Gbit/s a node, from which stage 3 hides them (ml-engineering's figures)."""
STAGE_3_ONLY = ("offload_param", "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients", "sub_group_size",
                "stage3_gather_16bit_weights_on_model_save")  # fmt: skip


def states_at_stage_2(model: ModelFacts, shards: int, frozen: float) -> float:
    """Bytes on a GPU: whole 16-bit weights, sharded gradients, masters and moments."""
    return 2 * model.trainable_params + frozen + 14 * model.trainable_params / shards


@rule("DS055", Card(title="frozen weights that do not fit whole", severity="warning", effect="memory", kinds=DS, source="ds-stage12",
                    needs=("model", "cluster"), fix="stage 3",
                    why="Stages 1 and 2 shard only what the optimizer steps; frozen weights stay whole on every GPU."))  # fmt: skip
def frozen_replicated(subject: Subject) -> Iterator[Hit]:
    """LoRA at stage 1 or 2 whose base is larger than the GPU."""
    view, model, cluster = View(subject), subject.model, subject.cluster
    if view.stage not in (1, 2) or model is None or cluster is None or model.frozen_params < model.trainable_params:
        return
    held = frozen_bytes(subject)
    if held > 0.9 * cluster.gpu_bytes:
        yield Hit(path=STAGE, changes=(edit(STAGE, 3),),
                  message=f"{model.frozen_params:,} frozen parameters take {gb(held)} on each GPU of {gb(cluster.gpu_bytes)}.")  # fmt: skip


@rule("DS085", Card(title="stage 3 over a network without need", severity="warning", effect="slow", kinds=DS, source="zero",
                    needs=("model", "cluster"), fix="stage 2 or 1, or hpZ with the GPUs of a node",
                    why="Stage 3 gathers all weights twice in each micro-step, also frozen ones; stages 1 and 2 only send what is "
                        "trained."))  # fmt: skip
def stage_3_not_needed(subject: Subject) -> Iterator[Hit]:
    """A model that fits at stage 2, sharded over several nodes."""
    view, model, cluster, shards = View(subject), subject.model, subject.cluster, View(subject).shards
    if view.stage != 3 or model is None or cluster is None or cluster.nodes < 2 or not shards or view.number(HPZ) > 1:
        return
    held = states_at_stage_2(model, shards, frozen_bytes(subject))
    if held > ROOM * cluster.gpu_bytes:
        return
    gathered, reduced = 4 * model.total_params, 2 * model.trainable_params
    seconds = f", {(gathered + reduced) / cluster.inter_node_bytes_per_s:.1f} s of the network" if cluster.inter_node_bytes_per_s else ""
    changes: tuple[Change, ...] = (edit(STAGE, 2), *(drop(f"{ZERO}.{key}") for key in STAGE_3_ONLY if view.written(f"{ZERO}.{key}")))
    yield Hit(path=STAGE, changes=changes,
              message=f"Each micro-step moves 2 × 2 × {model.total_params:,} + 2 × {model.trainable_params:,} = "
                      f"{gb(gathered + reduced)}{seconds}; "
                      f"at stage 2 the states take {gb(held)} of {gb(cluster.gpu_bytes)}, so no sharding of weights is "
                      f"needed.")  # fmt: skip


@rule("DS086", Card(title="stage 3 over a slow network", severity="warning", effect="slow", kinds=DS, source="zeropp",
                    needs=("model", "cluster"), fix="zero_hpz_partition_size = GPUs per node",
                    why="Every micro-step gathers the weights over the network for forward and again for backward; with hpZ, a copy "
                        "in each node "
                        "serves backward and all later micro-steps."))  # fmt: skip
def no_hpz(subject: Subject) -> Iterator[Hit]:
    """Gathers over the network that last a second or more, and hpZ where there is room for the copy."""
    view, model, cluster, shards = View(subject), subject.model, subject.cluster, View(subject).shards
    if view.stage != 3 or model is None or cluster is None or cluster.nodes < 2 or not shards or view.number(HPZ) > 1:
        return
    network = cluster.inter_node_bytes_per_s
    if not network or network > FAST_NETWORK or states_at_stage_2(model, shards, frozen_bytes(subject)) <= ROOM * cluster.gpu_bytes:
        return
    seconds, copy = 4 * model.total_params / network, 2 * model.total_params / cluster.gpus_per_node
    if seconds <= SLOW_STEP_S:
        return
    states = (2 if view.device(OPTIMIZER) != "none" else 16) * model.trainable_params / shards + frozen_bytes(subject) / shards
    even = cluster.gpus_per_node > 1 and shards % cluster.gpus_per_node == 0 and view.device(PARAM) == "none"
    room = even and states + copy < ROOM * cluster.gpu_bytes
    fix = "" if room else "a faster network, one node with offload, more tokens in a micro-step, or zero_quantized_weights"
    yield Hit(path=HPZ, changes=(edit(HPZ, cluster.gpus_per_node),) if room else (), fix=fix,
              message=f"Gathers of 2 × 2 × {model.total_params:,} = {gb(4 * model.total_params)} take {seconds:.1f} s of the network "
                      f"in each "
                      f"micro-step; a copy in each node would cost {gb(copy)} a "
                      f"GPU{'' if room else ', for which there is no room'}.")  # fmt: skip


@rule("DS079", Card(title="a model that every GPU loads whole", severity="warning", effect="memory", kinds=DS, source="hf-deepspeed",
                    launchers=frozenset({"deepspeed"}), needs=("model",), fix="create HfDeepSpeedConfig(ds_config) before "
                                                                              "from_pretrained, and keep it alive",
                    why="from_pretrained partitions while loading only where an HfDeepSpeedConfig exists; without it each rank builds "
                        "the whole model."))  # fmt: skip
def loaded_whole(subject: Subject) -> Iterator[Hit]:
    """Stage 3 of a transformers model in an own script."""
    view, model, cluster = View(subject), subject.model, subject.cluster
    if view.stage != 3 or model is None or not model.hf_class:
        return
    whole_bytes = 2 * model.total_params
    if cluster and whole_bytes <= 0.3 * cluster.gpu_bytes:
        return
    yield Hit(path=STAGE, severity=None if whole_bytes > 16e9 else "info",
              message=f"Without HfDeepSpeedConfig each rank loads 2 × {model.total_params:,} = {gb(whole_bytes)} before stage 3 "
                      f"shards it.")  # fmt: skip


@rule("DS102", Card(title="states that do not "
                          "fit", severity="warning", effect="memory", kinds=DS, source="zero", needs=("model", "cluster"),
                    why="Weights, gradients, masters and moments alone are more than the GPU has, before any activation.",
                    fix="a higher stage, offload, or more GPUs"))  # fmt: skip
def states_too_large(subject: Subject) -> Iterator[Hit]:
    """The bytes per parameter of the stage beside the GPU."""
    view, model, cluster, shards = View(subject), subject.model, subject.cluster, View(subject).shards
    if model is None or cluster is None or not shards or view.precision == "fp32" or view.on("bf16.bf16_master_weights_and_grads"):
        return
    tensor, trained = view.tensor_parallel, model.trainable_params
    stage, offloaded = view.stage, view.device(OPTIMIZER) != "none" and view.stage > 0
    weights = (2 * trained + frozen_bytes(subject)) / (shards if stage == 3 else 1)
    weights = 0.0 if stage == 3 and view.device(PARAM) != "none" else weights
    moments = 0.0 if offloaded else 12 * trained / (shards if stage else 1)
    gradients = 0.0 if offloaded and stage >= 2 else 2 * trained / (shards if stage >= 2 else 1)
    needed = (weights + moments + gradients) / tensor
    if needed > cluster.gpu_bytes:
        yield Hit(path=STAGE, message=f"At stage {stage} on {shards} ranks, weights {gb(weights / tensor)}, gradients "
                                      f"{gb(gradients / tensor)} and optimizer "
                                      f"{gb(moments / tensor)} make {gb(needed)} on a GPU of {gb(cluster.gpu_bytes)}.")  # fmt: skip
