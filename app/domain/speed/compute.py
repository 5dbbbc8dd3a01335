"""Compute time: hardware FLOPs over an achieved rate, and the memory-bound rest over HBM bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.memory.activations import block_bytes
from app.domain.model.flops import ForwardFlops, forward_flops
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share


@term(title="matrix products", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="fitted",
      changes_it="larger micro-batches; less recompute")  # fmt: skip
def matmul_s(tokens: Array, flops_per_token: Array, rate: Array, ranks: Array) -> Array:
    """Seconds one GPU spends in dense layers and the head per step.

    Equation: tokens · hardware FLOPs / (peak · share reached for this shape)

    Source: facts on FLOP conventions; the share is fitted on published runs (docs/accuracy.md).
    """
    return tokens * flops_per_token / rate / ranks


@term(title="attention kernel", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="fitted",
      changes_it="sequence length; a flash kernel")  # fmt: skip
def attention_s(tokens: Array, flops_per_token: Array, rate: float, ranks: Array) -> Array:
    """Seconds one GPU spends in scores and values per step."""
    return tokens * flops_per_token / rate / ranks


@term(
    title="memory-bound kernels",
    equation="bytes_moved / bytes_per_s",
    source="public-rows",
    exactness="fitted",
    changes_it="compile; fused kernels",
)
def elementwise_s(bytes_moved: Array, bytes_per_s: float) -> Array:
    """Seconds of norms, activations, casts and losses per step: bytes through HBM over its bandwidth."""
    return bytes_moved / bytes_per_s


@term(
    title="kernel launches",
    equation="blocks × passes × seconds_each",
    source="public-rows",
    exactness="fitted",
    changes_it="larger micro-batches; compile",
)
def launch_s(blocks: Array, passes: Array, seconds_each: float) -> Array:
    """Seconds the host needs to issue the kernels of a step; shown where the GPU would wait for it."""
    return blocks * passes * seconds_each


def shape_share(rows: Any, width: Any, half_rows: float, half_width: float) -> Any:
    """Share of the best matmul rate that a product of this shape reaches: short and narrow products lose.

    Equation: rows/(rows + rows½) · width/(width + width½)

    Example:
        >>> shape_share(4096, 4096, 4096, 4096)
        0.25
    """
    return rows / (rows + half_rows) * width / (width + half_width)


def hardware_flops(numbers: Numbers, columns: Columns, flops: ForwardFlops) -> tuple[Array, Array]:
    """FLOPs the GPU executes per token in dense layers and in attention, recompute and frozen weights counted.

    Equation: linear: 3·F, + F with full checkpointing, − F·frozen share; head 3·F; attention 3.5·F, + F with full checkpointing
    (flash backward rebuilds the scores).
    """
    recompute = np.choose(columns.checkpointing, [0.0, 0.5, 1.0])
    weight_gradient = 1.0 if not numbers.frozen else numbers.trainable_frac if not numbers.adapter else 0.0
    low_rank = 6.0 * numbers.adapter
    linear = flops.linear * (2 + weight_gradient + recompute) + low_rank
    head = flops.head * (2 + weight_gradient)
    attention = flops.attention * (3.5 + np.where(columns.checkpointing == 2, 1.0, 0.0))
    return linear + head, attention


def add_compute(ledger: Ledger, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> None:
    """Add the compute lines of one optimizer step of one GPU."""
    c, recipe, gpu, rates = columns, setup.recipe, setup.pool.node.gpu, setup.rates
    flops = forward_flops(setup.model, recipe.seq_len)
    linear, attention = hardware_flops(numbers, c, flops)
    tokens = share.tokens * c.grad_accum
    model_ranks = c.tp * c.pp
    reached = rates.matmul_frac.get(gpu.architecture, rates.matmul_frac["default"])
    narrow = setup.model.hidden_size / np.sqrt(c.tp)
    best = gpu.peak(recipe.precision) * reached
    rate = best * shape_share(share.tokens, narrow, rates.half_rows, rates.half_width)
    ledger.add(matmul_s, "compute", "step", {}, tokens=tokens, flops_per_token=linear, rate=rate, ranks=model_ranks)
    wide = gpu.peak("bf16" if recipe.precision == "fp8" else recipe.precision)
    kernel = rates.attention_frac * (rates.eager_attention_frac if recipe.attention == "eager" else 1.0)
    ledger.add(attention_s, "compute", "step", {}, tokens=tokens, flops_per_token=attention, rate=wide * kernel, ranks=model_ranks)
    per = block_bytes(setup, c)
    layers = setup.model.num_layers
    passes = 1 + np.where(c.checkpointing == 2, rates.recompute_elementwise_frac, 0.0)
    fused = rates.compile_elementwise_frac if recipe.compile else 1.0
    touched = tokens * per.whole * layers / model_ranks * passes * rates.elementwise_bytes_factor * fused
    logits = tokens * setup.model.vocab_size * rates.logit_hbm_bytes / c.tp
    ledger.add(elementwise_s, "compute", "step", {}, bytes_moved=touched + logits, bytes_per_s=gpu.hbm_bytes_per_s * rates.memory_frac)


def launch_floor(setup: TrainingSetup, columns: Columns, share: Share) -> Array:
    """Seconds below which a step cannot go because kernels are issued one by one."""
    passes = np.choose(columns.checkpointing, [3.0, 3.5, 4.0]) * columns.grad_accum
    return launch_s(share.layers, passes, setup.rates.layer_launch_s * (setup.rates.compile_launch_frac if setup.recipe.compile else 1.0))
