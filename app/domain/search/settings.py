"""The settings of one candidate, in the words of configuration files."""

from __future__ import annotations

from typing import Any

from app.domain.parallel.strategy import STRATEGIES
from app.domain.plan import Settings
from app.domain.recipe.precision import stored_dtypes
from app.domain.recipe.recipe import CHECKPOINTING_NAMES, Recipe
from app.domain.search.constraints import OFFLOAD_TARGETS
from app.domain.search.evaluate import Evaluation
from app.domain.setup import Columns, TrainingSetup

_MAX_LIVE_NUMEL = 1_000_000_000
_COLUMNS = (
    "row", "world_size", "dp", "zero_ranks", "replicas", "state_ranks", "tp", "pp", "sp", "ep", "hpz", "qwz", "qgz", "micro_batch",
    "grad_accum", "checkpointing", "act_offload", "offload_optimizer", "offload_parameters", "bucket", "prefetch", "persistence", "reuse",
    "sub_group", "overlap_comm",
)  # fmt: skip


def settings_at(evaluation: Evaluation, index: int) -> Settings:
    """Everything that must be written into a file to run this candidate."""
    return settings_of(evaluation.setup, evaluation.columns, index)


def settings_of(setup: TrainingSetup, columns: Columns, index: int) -> Settings:
    """The same without having evaluated it."""
    number = {name: int(getattr(columns, name)[index]) for name in _COLUMNS}
    strategy = STRATEGIES[number["row"]]
    offloaded = OFFLOAD_TARGETS[number["offload_optimizer"]]
    default = "cpu" if offloaded != "none" else "deepspeed_fused" if strategy.framework == "deepspeed" else "fused"
    return Settings(
        framework=strategy.framework,
        strategy=strategy.name,
        gpus_per_node=setup.pool.node.gpus_per_node,
        nodes=setup.pool.nodes,
        activation_checkpointing=CHECKPOINTING_NAMES[number["checkpointing"]],
        activation_offload=bool(number["act_offload"]),
        offload_optimizer=offloaded,
        offload_parameters=OFFLOAD_TARGETS[number["offload_parameters"]],
        offload_optimizer_ratio=1.0 - float(columns.kept_frac[index]),
        optimizer_implementation=setup.recipe.optimizer_implementation or default,
        **_mesh(number, strategy.states),
        **_numerics(setup.recipe, strategy.framework),
        **_sizes(number),
    )


def _mesh(number: dict[str, int], states: str) -> dict[str, Any]:
    """World, mesh axes and batch."""
    hybrid = states == "group"
    shard = number["state_ranks"] if hybrid else number["zero_ranks"]
    return {
        "world_size": number["world_size"],
        "dp_replicate": number["replicas"],
        "dp_shard": number["dp"] // number["replicas"] if hybrid else number["dp"],
        "tensor_parallel": number["tp"],
        "pipeline_parallel": number["pp"],
        "sequence_parallel": number["sp"],
        "expert_parallel": number["ep"],
        "shard_group_size": 1 if states == "none" else shard,
        "hpz_group_size": number["hpz"],
        "quantized_weights": bool(number["qwz"]),
        "quantized_gradients": bool(number["qgz"]),
        "micro_batch": number["micro_batch"],
        "grad_accum": number["grad_accum"],
        "global_batch": number["micro_batch"] * number["grad_accum"] * number["dp"],
    }


def _numerics(recipe: Recipe, framework: str) -> dict[str, Any]:
    """Dtypes as the framework really holds them, and what the recipe fixes."""
    dtypes = stored_dtypes(framework, recipe)
    copied = (
        "seq_len", "precision", "master_weights", "optimizer", "optimizer_in_backward", "attention", "fused_loss", "compile",
    )  # fmt: skip
    return {name: getattr(recipe, name) for name in copied} | {
        "param_dtype": dtypes.master or dtypes.param,
        "grad_dtype": dtypes.grad,
        "reduce_dtype": dtypes.reduce,
        "optimizer_state_dtype": dtypes.state,
    }


def _sizes(number: dict[str, int]) -> dict[str, Any]:
    """DeepSpeed's bucket and group sizes, in elements."""
    return {
        "reduce_bucket_numel": number["bucket"],
        "prefetch_bucket_numel": number["prefetch"],
        "param_persistence_numel": number["persistence"],
        "max_live_numel": _MAX_LIVE_NUMEL,
        "max_reuse_distance_numel": number["reuse"],
        "sub_group_numel": number["sub_group"],
        "overlap_comm": bool(number["overlap_comm"]),
    }
