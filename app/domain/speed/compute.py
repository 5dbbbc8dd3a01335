"""Compute time: hardware FLOPs over an achieved rate, and the memory-bound rest over HBM bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Ledger
from app.domain.memory.activations import block_bytes, compute_of
from app.domain.memory.tensor import replicated_per_token, residual_ranks
from app.domain.model.architecture import Role
from app.domain.model.flops import ForwardFlops, forward_flops
from app.domain.recipe.adapter import adapter_params, saved_module_params
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share, stage_layers
from app.domain.speed.products import Products, operand_share, products_of


@term(title="matrix products", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="fitted",
      changes_it="larger micro-batches; less recompute")  # fmt: skip
def matmul_s(tokens: Array, flops_per_token: Array, rate: Array, ranks: Array) -> Array:
    """Seconds one GPU spends in the dense layers of the blocks per step.

    Equation: tokens · hardware FLOPs / (peak · share reached for this shape)

    Source: facts on FLOP conventions; the share is fitted on published runs (docs/accuracy.md).
    """
    return tokens * flops_per_token / rate / ranks


@term(title="expert products", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="fitted",
      changes_it="larger micro-batches: each expert sees its share of the tokens only")  # fmt: skip
def expert_matmul_s(tokens: Array, flops_per_token: Array, rate: Array, ranks: Array) -> Array:
    """Seconds one GPU spends in routed experts per step; the rate is that of tokens · k / E rows."""
    return tokens * flops_per_token / rate / ranks


@term(title="output head", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="fitted")
def head_s(tokens: Array, flops_per_token: Array, rate: Array, ranks: Array) -> Array:
    """Seconds of the product with the vocabulary per step, averaged over the stages of a pipeline; it is never recomputed."""
    return tokens * flops_per_token / rate / ranks


@term(title="adapter products", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="derived",
      changes_it="rank; fewer target layers")  # fmt: skip
def adapter_s(tokens: Array, flops_per_token: Array, rate: Array, ranks: Array) -> Array:
    """Seconds of low-rank products per step: matrices as narrow as the rank are bound by memory."""
    return tokens * flops_per_token / rate / ranks


@term(title="attention kernel", equation="tokens × flops_per_token / rate / ranks", source="public-rows", exactness="fitted",
      changes_it="sequence length; a flash kernel")  # fmt: skip
def attention_s(tokens: Array, flops_per_token: Array, rate: Array, ranks: Array) -> Array:
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


@term(title="loss over the logits", equation="logits × bytes_each / bytes_per_s", source="hf-loss", exactness="derived",
      changes_it="a fused loss; fewer tokens")  # fmt: skip
def loss_s(logits: Array, bytes_each: float, bytes_per_s: float) -> Array:
    """Seconds the loss takes to read and write its copies of the logits per step, averaged over the stages of a pipeline."""
    return logits * bytes_each / bytes_per_s


@term(title="unpacking quantised weights", equation="params × passes × bytes_each / bytes_per_s", source="public-rows", exactness="fitted",
      changes_it="larger micro-batches; a 16-bit base")  # fmt: skip
def unpack_s(params: Array, passes: Array, bytes_each: float, bytes_per_s: float) -> Array:
    """Seconds of turning a quantised base into 16 bits, once each time a layer's product runs, however few tokens there are.

    Source: QLoRA's forward and backward dequantise the base for every product (Dettmers et al., section 3).
    """
    return params * passes * bytes_each / bytes_per_s


@term(title="casts to fp8", equation="(tokens × sides + weights) × bytes_each / bytes_per_s", source="public-rows", exactness="derived")
def fp8_cast_s(tokens: Array, sides: Array, weights: Array, bytes_each: float, bytes_per_s: float) -> Array:
    """Seconds of scaling and casting what goes into fp8 products: inputs, output gradients and weights.

    Equation: (tokens · Σ(K + N) + Σ K·N · micro-steps) · 6 bytes: a maximum is taken (2 read), the cast reads 2 and writes 1, its
    transpose for the weight gradient writes 1 more.
    """
    return (tokens * sides + weights) * bytes_each / bytes_per_s


@term(
    title="pipeline stages waiting",
    equation="(slowest - mean) × scale + (stages × mean - slowest) × scale / micro_steps",
    source="megatron",
    exactness="derived",
    changes_it="more micro-steps; fewer stages; layers that divide evenly",
)
def pipeline_wait_s(slowest: Array, mean: Array, stages: Array, micro_steps: Array, scale: Array) -> Array:
    """Seconds an average stage stands idle per step under 1F1B: the slowest sets the pace, the others are passed once to fill and drain.

    Equation: T = m · t_max + Σ t_i − t_max, less the mean stage's own m · mean(t_i)

    Args:
        slowest, mean: work of the slowest stage and of the mean one, seconds per step.
        stages, micro_steps: p and m.
        scale: 1, or how much longer the host needs to issue the kernels than the device to run them.

    Source: Narayanan et al., section 2.2; with equal stages this is their bubble of (p − 1)/m.

    Example: 8 equal stages and 64 micro-batches wait 7/64 of their work.
        >>> pipeline_wait_s(64.0, 64.0, 8, 64, 1.0)
        7.0
    """
    wait: Array = ((slowest - mean) + (stages * mean - slowest) / micro_steps) * scale
    return wait


@term(
    title="kernel launches",
    equation="blocks × passes × seconds_each",
    source="public-rows",
    exactness="fitted",
    changes_it="larger micro-batches; compile",
)
def launch_s(blocks: Array, passes: Array, seconds_each: Array) -> Array:
    """Seconds the host needs to issue the kernels of a step; shown where the GPU would wait for it."""
    return blocks * passes * seconds_each


_FP8_CAST_BYTES = 6.0
_EXPERT_LAUNCHES, _ADAPTER_LAUNCHES = 0.2, 0.125
"""Kernels of one expert over those of a block: gather, two or three products, activation, weighting, scatter against about forty; and
of one adapted matrix: dropout, two products, scaling, sum."""


def backward_passes(numbers: Numbers) -> float:
    """Backward work of dense layers over forward work: the input's gradient, and the weights' where they are trained.

    Example: full training 2; adapters, whose base is frozen, 1.
    """
    return 2.0 if not numbers.frozen else 1.0 if numbers.adapter else 1.0 + numbers.trainable_frac


def recompute_passes(columns: Columns) -> Array:
    """Forward work that is done again in backward: none, every second product, or all."""
    passes: Array = np.choose(columns.checkpointing, [0.0, 0.5, 1.0])
    return passes


def forward_share(numbers: Numbers, columns: Columns) -> Array:
    """Share of a micro-step's compute that is forward: 1 of 3, of 4 with full recompute."""
    share: Array = 1.0 / (1.0 + backward_passes(numbers) + recompute_passes(columns))
    return share


def best_rate(setup: TrainingSetup, precision: str) -> float:
    """FLOP/s of a large product in this precision: the share of the dense peak that training reaches on this architecture."""
    rates, gpu = setup.rates, setup.pool.node.gpu
    return gpu.peak(precision) * rates.matmul_frac.get(gpu.architecture, rates.matmul_frac["default"])


def product_rate(setup: TrainingSetup, precision: str, rows: Array, thin: Array) -> Array:
    """FLOP/s of products with this many rows and these sides."""
    best, gpu = best_rate(setup, precision), setup.pool.node.gpu
    width = {"fp8": 1.0, "fp32": 4.0}.get(precision, 2.0)
    balance = best * width / 2 / (gpu.hbm_bytes_per_s * setup.rates.memory_frac) * setup.rates.operand_reread
    rate: Array = best * operand_share(rows, thin, balance)
    return rate


def add_compute(ledger: Ledger, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Array:
    """Add the compute lines of one optimizer step of one GPU, the mean one of a pipeline, then what its stages wait for each other.

    Returns:
        Seconds of the step's compute: of its lines, or what the host needs to issue its kernels where that is more.
    """
    c = columns
    blocks = _add_products(ledger, setup, numbers, c, share) + _add_attention(ledger, setup, c, share)
    blocks = blocks + _add_elementwise(ledger, setup, c, share)
    if setup.model.main_block.moe:
        # The host waits for how many tokens each expert got before it can issue their kernels, so it never runs ahead of the device.
        blocks = blocks + ledger.add(launch_s, "compute", "step", {}, **_launches(setup, c))
    ends = _add_head(ledger, setup, numbers, c, share)
    total, floor = blocks + ends, launch_floor(setup, c)
    if (c.pp > 1).any():
        layers = numbers.num_layers
        first, last = (stage_layers(layers, c.pp, stage) / layers * c.pp for stage in (c.pp * 0, c.pp - 1))
        slowest = np.maximum(blocks * first, blocks * last + ends * c.pp)
        scale = np.maximum(1.0, floor / np.maximum(total, 1e-30))
        total = total + ledger.add(
            pipeline_wait_s, "compute", "step", {}, slowest=slowest, mean=total, stages=c.pp, micro_steps=c.grad_accum, scale=scale
        )
    compute: Array = np.maximum(total, floor)
    return compute


def _add_products(ledger: Ledger, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Array:
    """Dense layers, experts and adapters of the blocks; returns their seconds."""
    c, recipe = columns, setup.recipe
    tokens, ranks = share.tokens * c.grad_accum, c.tp * c.pp
    times = 1 + backward_passes(numbers) + recompute_passes(c)
    dense, routed = products_in(setup)
    rate = product_rate(setup, recipe.precision, share.tokens, dense.thin + dense.split * (c.tp - 1))
    total = ledger.add(matmul_s, "compute", "step", {}, tokens=tokens, flops_per_token=dense.flops * times, rate=rate, ranks=ranks)
    moe = setup.model.main_block.moe
    if moe:
        rows = np.maximum(1.0, share.tokens * c.ep * moe.experts_per_token / moe.num_experts)
        rate = product_rate(setup, recipe.precision, rows, routed.thin + routed.split * (c.tp - 1))
        total = total + ledger.add(
            expert_matmul_s, "compute", "step", {}, tokens=tokens, flops_per_token=routed.flops * times, rate=rate, ranks=ranks
        )
    if recipe.adapter:
        low_rank = adapter_params(setup.model, recipe.adapter)
        passes = 6.0 + 2.0 * recompute_passes(c)
        rate = product_rate(setup, "bf16", share.tokens, np.full(len(c), setup.rates.adapter_reread / recipe.adapter.rank))
        total = total + ledger.add(
            adapter_s, "compute", "step", {}, tokens=tokens, flops_per_token=passes * low_rank, rate=rate, ranks=ranks
        )
    return total + _add_conversions(ledger, setup, numbers, c, share)


def _add_conversions(ledger: Ledger, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Array:
    """Unpacking of a quantised base and casts to fp8; returns their seconds."""
    c, gpu, recipe = columns, setup.pool.node.gpu, setup.recipe
    bandwidth, ranks, total = gpu.hbm_bytes_per_s * setup.rates.memory_frac, c.tp * c.pp, np.zeros(len(c))
    if numbers.quantised:
        total = total + ledger.add(
            unpack_s, "compute", "step", {}, params=numbers.quantised / ranks, passes=(2.0 + recompute_passes(c)) * c.grad_accum,
            bytes_each=setup.rates.unpack_hbm_bytes, bytes_per_s=bandwidth,
        )  # fmt: skip
    if recipe.precision == "fp8" and gpu.peak("fp8") > gpu.peak("bf16"):
        both = products_in(setup)
        total = total + ledger.add(
            fp8_cast_s, "compute", "step", {}, tokens=share.tokens * c.grad_accum, sides=_sum(both, "sides") / ranks,
            weights=_sum(both, "weights") * c.grad_accum / ranks, bytes_each=_FP8_CAST_BYTES, bytes_per_s=bandwidth,
        )  # fmt: skip
    return total


def products_in(setup: TrainingSetup) -> tuple[Products, Products]:
    """The products of all blocks: dense layers, and routed experts."""

    def make() -> tuple[Products, Products]:
        dense, routed = (products_of(setup.model, setup.recipe.seq_len, routed=routed) for routed in (False, True))
        return dense, routed

    return setup.once("products", make)


def flops_in(setup: TrainingSetup) -> ForwardFlops:
    """Forward FLOPs per token at the recipe's sequence length."""
    return setup.once("flops", lambda: forward_flops(setup.model, setup.recipe.seq_len))


def _sum(products: Sequence[Products], name: str) -> float:
    return float(sum(getattr(p, name) for p in products))


def _add_attention(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> Array:
    """Scores and values.

    A flash kernel skips the masked half and rebuilds the scores in backward: 3.5 forwards, one more with full recompute. Eager attention
    is two batched products of all scores, thin as one head, 3 forwards in all; its passes over the scores are among the memory-bound.
    """
    c, recipe, rates, gpu = columns, setup.recipe, setup.rates, setup.pool.node.gpu
    flops, layer = flops_in(setup), setup.model.main_block.attention
    precision, again = "bf16" if recipe.precision == "fp8" else recipe.precision, (c.checkpointing == 2) * 1.0
    if recipe.attention == "eager" and layer:
        rows = np.full(len(c), float(recipe.seq_len))
        rate = product_rate(setup, precision, rows, 1.0 / layer.head_dim + 1.0 / rows)
        per_token = flops.attention_full * (3.0 + again)
    else:
        rate = np.full(len(c), gpu.peak(precision) * rates.attention_frac.get(gpu.architecture, rates.attention_frac["default"]))
        per_token = flops.attention * (3.5 + again)
    tokens = share.tokens * c.grad_accum
    return ledger.add(attention_s, "compute", "step", {}, tokens=tokens, flops_per_token=per_token, rate=rate, ranks=c.tp * c.pp)


def _add_elementwise(ledger: Ledger, setup: TrainingSetup, columns: Columns, share: Share) -> Array:
    """Everything of the blocks that is bound by memory; tensor ranks without sequence parallelism repeat norms and residuals."""
    c, rates, recipe = columns, setup.rates, setup.recipe
    whole = block_bytes(setup, c).whole
    width = float(c.compute_bytes[0])
    repeated = setup.once(
        ("repeated", width), lambda: replicated_per_token(setup.model.main_block, compute_of(setup, width=width, autocast=False)).none
    )
    repeated = np.minimum(whole, repeated * (residual_ranks(c) == 1))
    passes = 1 + np.where(c.checkpointing == 2, rates.recompute_elementwise_frac, 0.0)
    fused = rates.compile_elementwise_frac if recipe.compile else 1.0
    each = ((whole - repeated) / c.tp + repeated) * setup.model.num_layers / c.pp
    moved = share.tokens * c.grad_accum * each * passes * rates.elementwise_bytes_factor * fused
    bandwidth = setup.pool.node.gpu.hbm_bytes_per_s * rates.memory_frac
    return ledger.add(elementwise_s, "compute", "step", {}, bytes_moved=moved, bytes_per_s=bandwidth)


def _add_head(ledger: Ledger, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> Array:
    """The output head, always in 16 bits or wider, and the passes of the loss over the logits; both on the last stage."""
    c, recipe, rates, model = columns, setup.recipe, setup.rates, setup.model
    if not model.vocab_size:
        return np.zeros(len(c))
    tokens, ranks = share.tokens * c.grad_accum, c.tp * c.pp
    precision = "bf16" if recipe.precision == "fp8" else recipe.precision
    rate = product_rate(setup, precision, share.tokens, 1.0 / model.hidden_size + c.tp / model.vocab_size)
    trained = bool(recipe.adapter and saved_module_params(model, recipe.adapter))
    flops = flops_in(setup).head * (1 + (2.0 if trained else backward_passes(numbers)))
    total = ledger.add(head_s, "compute", "step", {}, tokens=tokens, flops_per_token=flops, rate=rate, ranks=ranks)
    logits, bandwidth = tokens * model.vocab_size / ranks, setup.pool.node.gpu.hbm_bytes_per_s * rates.memory_frac
    return total + ledger.add(loss_s, "compute", "step", {}, logits=logits, bytes_each=rates.logit_hbm_bytes, bytes_per_s=bandwidth)


def launch_floor(setup: TrainingSetup, columns: Columns) -> Array:
    """Seconds below which the mean stage's step cannot go because the host issues kernels one by one."""
    return launch_s(**_launches(setup, columns))


def _launches(setup: TrainingSetup, columns: Columns) -> dict[str, Array]:
    """What ``launch_s`` reads. DeepSpeed's stage 3 runs hooks in Python round every submodule, which fetch and release its parameters."""
    c, rates = columns, setup.rates
    return {
        "blocks": setup.model.num_layers / c.pp,
        "passes": np.choose(c.checkpointing, [3.0, 3.5, 4.0]) * c.grad_accum,
        "seconds_each": rates.layer_launch_s * _kernels(setup, c) + rates.zero3_hook_s * c.zero3,
    }


def _kernels(setup: TrainingSetup, columns: Columns) -> Array:
    """Kernels of one block over those of a dense one without adapters; a compiler fuses all but the experts', which depend on the data."""
    block, adapter = setup.model.main_block, setup.recipe.adapter
    adapted = sum(adapter.covers(w) for w in block.weights if w.role in (Role.LINEAR, Role.CONV)) if adapter else 0
    experts = block.moe.num_experts / columns.ep if block.moe else np.zeros(len(columns))
    fused = setup.rates.compile_launch_frac if setup.recipe.compile else 1.0
    kernels: Array = (1.0 + _ADAPTER_LAUNCHES * adapted) * fused + _EXPERT_LAUNCHES * experts
    return kernels
