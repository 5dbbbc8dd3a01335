"""The models beside the trained one, as setups and columns of their own: the same formulas then give what they cost.

A trained companion runs under the trained model's recipe and strategy. A frozen one has weights alone: divided where the strategy
divides parameters, whole elsewhere (DeepSpeed gives a model without an optimizer stage 0 or 3), and it only runs forward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.domain.parallel.strategy import STRATEGIES
from app.domain.recipe.companion import Companion
from app.domain.recipe.precision import FRAMEWORKS, dtype_bytes, stored_dtypes
from app.domain.recipe.recipe import Recipe
from app.domain.setup import Array, Columns, TrainingSetup, dtype_columns


def setup_of(setup: TrainingSetup, companion: Companion) -> TrainingSetup:
    """The setup one companion is evaluated under: its model, on the same devices."""
    return replace(setup, model=companion.model, recipe=_recipe_of(setup.recipe, companion), companions=())


def _recipe_of(recipe: Recipe, companion: Companion) -> Recipe:
    changes: dict[str, Any] = {"seq_len": companion.seq_len or recipe.seq_len, "trainable_params": None}
    if companion.trains:
        blocks = [stack.block for stack in companion.model.stacks]
        adapter = recipe.adapter if recipe.adapter and any(recipe.adapter.covers(w) for b in blocks for w in b.weights) else None
        return replace(recipe, precision=companion.precision or recipe.precision, adapter=adapter, **changes)
    # fp8 is of training's products; a frozen model is loaded in 16 bits beside it.
    precision = companion.precision or ("bf16" if recipe.precision == "fp8" else recipe.precision)
    return replace(recipe, precision=precision, adapter=None, **changes)


def columns_of(setup: TrainingSetup, companion: Companion, columns: Columns) -> Columns:
    """The candidates as a companion sees them: its own batch and dtypes, and its own sharding where it is frozen.

    Args:
        setup: the companion's own, of ``setup_of``.
    """
    batch = _batch_of(companion, columns)
    if companion.trains:
        return replace(columns, **batch, **{name: column[columns.row] for name, column in strategy_dtypes(setup).items()})
    ones = np.ones_like(columns.compute_bytes)
    width = ones * dtype_bytes(setup.recipe.precision)
    whole = {"param_ranks": ones, "tp": ones, "pp": ones, "ep": ones} if companion.replicated else {}
    stored = {"compute_bytes": width, "param_bytes": width, "frozen_bytes": width, "autocast": ones * 0.0}
    # Without an optimizer there is no engine of stages 1 and 2, and none of stage 3 where nothing is divided.
    divides = (columns.reduces_each > 0) & (columns.gathers_after == 0) & (not companion.replicated)
    engine = {"reduces_each": divides * 1, "gathers_after": columns.gathers_after * 0}
    return replace(columns, **batch, **stored, **whole, **engine)


def _batch_of(companion: Companion, columns: Columns) -> dict[str, Array]:
    """As many sequences a step as the trained model has, in micro-batches of its own size where it has one."""
    if companion.micro_batch is None:
        return {}
    sequences = columns.micro_batch * columns.grad_accum
    micro = np.minimum(companion.micro_batch, sequences)
    return {"micro_batch": micro, "grad_accum": np.ceil(sequences / micro)}


def strategy_dtypes(setup: TrainingSetup) -> dict[str, Array]:
    """Bytes of one element of each kind, an entry a row of ``STRATEGIES``."""

    def make() -> dict[str, Array]:
        dtypes = {f: stored_dtypes(f, setup.recipe) for f in FRAMEWORKS}
        return dtype_columns(dtypes, [s.framework for s in STRATEGIES], setup.numbers, setup.recipe)

    return setup.once("dtypes", make)
