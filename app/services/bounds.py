"""Bounds that need the model and the devices looked up: a plan is counted in 64-bit whole numbers of bytes."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.cluster.cluster import Pool
from app.domain.errors import InvalidRequestError
from app.domain.model.architecture import Architecture, Stack
from app.domain.model.parameters import total_params
from app.domain.recipe.recipe import Recipe

MAX_PARAMS = 10**14
MAX_GPUS = 2**20
"""GPUs of one pool."""
_MOST = 2**62
_LIVE_BYTES = 40
"""Bytes of activations that one hidden element of one layer may keep, with room to spare; Korthikanti et al. count 34."""
_WIDE_BYTES = 8
_MOVED_BYTES = 16
"""Bytes of one parameter that one micro-step may move: gathered twice and reduced, in fp32, with room to spare."""


def check_size(model: Architecture, recipe: Recipe, pools: Sequence[Pool]) -> None:
    """Refuse what is too large to be counted.

    Raises:
        InvalidRequestError: the model, a pool, or the tokens of a step, at the field that makes it so.
    """
    params = total_params(model)
    if params > MAX_PARAMS:
        msg = f"the model has {params:.3g} parameters; at most {MAX_PARAMS:.0e} are planned"
        raise InvalidRequestError.at("model", msg=msg, hint="make its layers smaller or fewer")
    for pool in pools:
        _check_pool(pool)
    micro = recipe.micro_batch or recipe.global_batch or 1
    sequences = max(micro * (recipe.grad_accum or 1), recipe.global_batch or 1)
    rank, scores = recipe.adapter.rank if recipe.adapter else 0, recipe.seq_len if recipe.attention == "eager" else 0
    per_token = sum(_of_layer(stack, rank, scores) for stack in model.stacks) + _LIVE_BYTES * model.vocab_size
    kept = per_token * recipe.seq_len * micro * max(pool.node.gpus_per_node for pool in pools)
    moved = per_token * recipe.seq_len * sequences + params * _MOVED_BYTES * -(-sequences // (recipe.micro_batch or 1))
    if max(kept, moved) > _MOST:
        raise _too_many(recipe, max(kept, moved))


def _check_pool(pool: Pool) -> None:
    if pool.world_size <= MAX_GPUS:
        return
    gpus, nodes = pool.node.gpus_per_node, pool.nodes
    raise InvalidRequestError.at(
        "cluster", "pools", pool.members[0], "nodes",
        msg=f"{nodes:,} nodes of {gpus:,} GPUs are {nodes * gpus:,} GPUs; pools of at most {MAX_GPUS:,} are planned",
        hint=f"use at most {MAX_GPUS // gpus:,} nodes",
    )  # fmt: skip


def _of_layer(stack: Stack, rank: int, scores: int) -> int:
    """Bytes that one token may keep in all layers of a stack, with an adapter's rank and the scores of each head that are written out."""
    block = stack.block
    used = block.moe.experts_per_token if block.moe else 1
    wide = sum(max(weight.shape) + rank for weight in block.weights if len(weight.shape) > 1)
    heads = sum(attention.num_heads for attention in (block.attention, block.cross_attention) if attention)
    return stack.count * (_LIVE_BYTES * block.hidden_size + _WIDE_BYTES * (wide * used + heads * scores))


def _too_many(recipe: Recipe, counted: int) -> InvalidRequestError:
    """The error at the largest factor that was given."""
    given = {key: getattr(recipe, key) or 1 for key in ("seq_len", "micro_batch", "grad_accum", "global_batch")}
    field = max(given, key=lambda key: given[key])
    said = " x ".join(f"{key} {value:,}" for key, value in given.items() if value > 1)
    msg = f"one step of {said} on this model may keep or move {counted:.1e} bytes; at most {_MOST:.1e} are counted"
    hint = f"use a smaller {field}" + (", or attention flash, which keeps no scores" if recipe.attention == "eager" else "")
    return InvalidRequestError.at("training", field, msg=msg, hint=hint)
