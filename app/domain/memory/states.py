"""Model states: parameters, gradients, master copy and optimizer moments, divided as the strategy says."""

from __future__ import annotations

from functools import partial

import numpy as np

from app.domain.cards import term
from app.domain.ledger import Tally
from app.domain.memory.moments import ALWAYS, BACKWARD_ON, REDUCTION, STEP
from app.domain.model.architecture import Role
from app.domain.recipe.optimizer import OPTIMIZERS
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share


@term(title="parameters", equation="params × bytes_each / ranks", source="zero", exactness="exact",
      changes_it="ZeRO-3 or FSDP divide them; parameter offload moves them to the host")  # fmt: skip
def parameter_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """Weights as stored between steps on one GPU.

    Equation: P · bytes / ranks

    Args:
        params: parameters of this GPU's part of the model.
        bytes_each: bytes of one stored weight.
        ranks: ranks that hold one copy together.

    Returns:
        Bytes per GPU.

    Source: Rajbhandari et al., ZeRO, section 3.

    Example:
        >>> parameter_bytes(7_500_000_000, 2, 64) / 1e9
        0.234375
    """
    return params * bytes_each / ranks


@term(title="frozen parameters", equation="params × bytes_each / ranks", source="ds-stage12", exactness="exact",
      changes_it="sharded only at ZeRO-3 or FSDP; QLoRA stores them in 4 bits")  # fmt: skip
def frozen_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """Weights that are not trained; ZeRO-1 and 2 keep them whole on every GPU. Bytes per GPU."""
    return params * bytes_each / ranks


@term(title="adapter parameters", equation="params × bytes_each / ranks", source="qlora", exactness="exact", changes_it="rank and targets")
def adapter_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """Low-rank factors and the modules trained in full beside them. Bytes per GPU."""
    return params * bytes_each / ranks


@term(title="gradients", equation="params × bytes_each / ranks", source="zero", exactness="exact",
      changes_it="ZeRO-2, ZeRO-3 and FSDP divide them")  # fmt: skip
def gradient_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """Gradients kept until the optimizer step.

    Equation: P_trainable · bytes / ranks. Bytes per GPU.

    Example:
        >>> gradient_bytes(7_500_000_000, 2, 64) / 1e9
        0.234375
    """
    return params * bytes_each / ranks


@term(title="gradient copy while accumulating", equation="params × bytes_each / ranks", source="ds-stage12", exactness="derived",
      changes_it="grad_accum 1, or fp32 accumulation")  # fmt: skip
def accumulation_copy_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """The fresh gradient partition that lives beside the accumulated one while they are added (ZeRO-2). Bytes per GPU."""
    return params * bytes_each / ranks


@term(title="fp32 master weights", equation="params × bytes_each / ranks", source="zero", exactness="exact",
      changes_it="more ranks; optimizer offload; master_weights false")  # fmt: skip
def master_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """The optimizer's own copy of the trained weights where they are stored in a lower precision. Bytes per GPU."""
    return params * bytes_each / ranks


@term(title="duplicate master weights", equation="params × bytes_each / ranks", source="ds-stage3", exactness="exact")
def duplicate_master_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """The flat copy DeepSpeed's optimizer keeps even where the module already has the master dtype. Bytes per GPU."""
    return params * bytes_each / ranks


@term(title="optimizer states", equation="params × bytes_each / ranks", source="zero", exactness="exact",
      changes_it="optimizer, state dtype, more ranks, offload")  # fmt: skip
def optimizer_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """Moments: state elements per parameter times their width.

    Equation: P_trainable · (elements · bytes) / ranks. Bytes per GPU.

    Example: Adam in fp32 for 7.5e9 parameters over 64 ranks.
        >>> optimizer_bytes(7_500_000_000, 8, 64) / 1e9
        0.9375
    """
    return params * bytes_each / ranks


@term(title="averaged weights (EMA)", equation="params × bytes_each / ranks", source="product", exactness="derived")
def ema_bytes(params: Array, bytes_each: Array, ranks: Array) -> Array:
    """A second, averaged copy of the trained weights, sharded as they are. Bytes per GPU."""
    return params * bytes_each / ranks


@term(title="gradients of tensors cut by a partition", equation="params × bytes_each", source="ds-stage12", exactness="exact",
      changes_it="fp32 accumulation; ZeRO-3")  # fmt: skip
def cut_gradient_bytes(params: Array, bytes_each: Array) -> Array:
    """ZeRO-1 and 2 keep whole gradients of the tensors at both ends of their part, of which the next rank owns the rest.

    Equation: (elements of all tensors a part touches − elements of the part) · bytes, on the rank that has most of them. Bytes per GPU.
    """
    return params * bytes_each


def add_states(ledger: Tally, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> None:
    """Add every state line; offloaded ones are zero on the GPU."""
    c, on_gpu = columns, columns.offload_parameters == 0
    weights = adapter_bytes if numbers.adapter else parameter_bytes
    category = "adapters" if numbers.adapter else "parameters"
    ledger.add(weights, category, "always", ALWAYS, params=share.trainable * on_gpu, bytes_each=c.param_bytes, ranks=c.param_ranks)
    if numbers.frozen:
        ledger.add(
            frozen_bytes, "parameters", "always", ALWAYS, params=share.frozen * on_gpu, bytes_each=c.frozen_bytes, ranks=c.param_ranks
        )
    trained = share.trainable * (1 - c.away)
    ledger.add(master_bytes, "optimizer_states", "always", ALWAYS, params=trained, bytes_each=c.master_bytes, ranks=c.state_ranks)
    ledger.add(
        duplicate_master_bytes, "optimizer_states", "always", ALWAYS, params=trained, bytes_each=c.duplicate_bytes, ranks=c.state_ranks
    )
    resident = 0.0 if OPTIMIZERS[setup.recipe.optimizer].paged else 1.0
    ledger.add(
        optimizer_bytes,
        "optimizer_states",
        "always",
        _after_init(ALWAYS),
        params=trained * resident * uneven_factor(c, share),
        bytes_each=c.state_bytes,
        ranks=c.state_ranks,
    )
    if setup.recipe.ema:
        ledger.add(ema_bytes, "optimizer_states", "always", ALWAYS, params=trained, bytes_each=c.param_bytes, ranks=c.state_ranks)
    _add_gradients(ledger, setup, numbers, columns, share)


@term(
    title="low-precision gradients beside fp32 accumulation",
    equation="params × bytes_each",
    source="ds-engine",
    exactness="derived",
    changes_it="ZeRO-2, or accumulation in the compute dtype",
)
def second_gradient_bytes(params: Array, bytes_each: Array) -> Array:
    """ZeRO-1 with fp32 accumulation keeps whole fp32 gradients; beside them are the module's own, and a copy to send. Bytes per GPU."""
    return params * bytes_each


def uneven_factor(columns: Columns, share: Share) -> Array:
    """How much more than its even share the fullest rank steps: ZeroRedundancyOptimizer deals out whole tensors, largest first.

    Equation: max(1, largest tensor · N / Ψ)

    Source: torch.distributed.optim.ZeroRedundancyOptimizer, ``_partition_parameters`` (sorted greedy).
    """
    whole = (columns.ddp > 0) & (columns.state_ranks > 1)
    factor: Array = np.where(whole, np.maximum(1.0, share.largest_trained * columns.state_ranks / np.maximum(1, share.trainable)), 1.0)
    return factor


def _add_gradients(ledger: Tally, setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> None:
    c = columns
    # Offload: ZeRO-2/3 and FSDP2 send each gradient shard to the host as it is made; ZeRO-1 keeps whole gradients on the GPU.
    leaves = (c.offload_optimizer > 0) & (c.reduces_each > 0)
    kept = share.trainable * ~leaves
    stage1 = c.zero12 & (c.reduces_each == 0)
    ranks = np.where(_frees_early(c), c.state_ranks, c.grad_ranks)
    stage0 = (c.deepspeed > 0) & ~c.zero12 & ~c.zero3
    width = np.where(stage0, np.minimum(c.grad_bytes, c.compute_bytes), c.grad_bytes)
    life = _gradient_life(setup, numbers, columns, share)
    ledger.add(gradient_bytes, "gradients", "backward", life,
               params=kept, bytes_each=width, ranks=ranks)  # fmt: skip
    # The part of an offloaded optimizer that stays is given fp32 gradients of its own, when the engine is built.
    ledger.add(gradient_bytes, "gradients", "always", ALWAYS, params=share.trainable * leaves * (1 - c.away), bytes_each=c.master_bytes,
               ranks=c.state_ranks)  # fmt: skip
    # A flat buffer of exactly its part is what fp32 accumulation has instead.
    flat_part = c.zero12 & (c.grad_bytes <= c.compute_bytes) & (c.offload_optimizer == 0) & (c.state_ranks > 1)
    if not numbers.adapter and flat_part.any():
        ledger.add(cut_gradient_bytes, "gradients", "backward", life | {STEP: 1.0},
                   params=cut_numel(setup, columns) * flat_part / c.tp, bytes_each=c.grad_bytes)  # fmt: skip
    twice = stage1 & (c.grad_bytes > c.compute_bytes) & (c.offload_optimizer != 1)
    # The copy that is sent goes when the reduction is over, the module's own gradients when the step is.
    backward = dict.fromkeys(BACKWARD_ON, 1.0) | {REDUCTION: 2.0, STEP: 1.0}
    ledger.add(second_gradient_bytes, "gradients", "backward", backward, params=kept * twice, bytes_each=c.compute_bytes)
    adds = (c.grad_accum > 1) & c.zero12 & (c.reduces_each > 0) & (c.grad_bytes < 4)
    ledger.add(
        accumulation_copy_bytes, "gradients", "backward", BACKWARD_ON, params=kept * adds, bytes_each=c.grad_bytes, ranks=c.grad_ranks
    )


def cut_numel(setup: TrainingSetup, columns: Columns) -> Array:
    """Elements of the tensors a rank's part touches, beyond the part, on the rank that has most of them.

    Example: parts of 100 elements of two tensors of 150 and 50: the first rank keeps 150, the second 200.
        >>> _most_cut(np.array([150, 50]), 2)
        100.0
    """
    ranks = np.broadcast_to(columns.state_ranks, columns.row.shape)
    out: Array = np.zeros(columns.row.shape)
    for number in set(ranks.ravel().tolist()):
        out += setup.once(("cut", number), partial(_cut, setup, int(number))) * (ranks == number)
    return out


def _cut(setup: TrainingSetup, ranks: int) -> float:
    """The same for one number of ranks: the embedding first, then the blocks, then norm and head."""
    model = setup.model
    first = [w for w in model.weights if w.role is Role.EMBEDDING]
    inside = [weight for stack in model.stacks for _ in range(stack.owned) for weight in stack.block.weights]
    weights = [*first, *inside, *(w for w in model.weights if w.role is not Role.EMBEDDING)]
    return _most_cut(np.repeat([w.numel // w.copies for w in weights], [w.copies for w in weights]), ranks)


def _most_cut(sizes: Array, ranks: int) -> float:
    ends = np.cumsum(sizes)
    borders = ends[-1] * np.arange(ranks + 1) / ranks
    first, last = np.searchsorted(ends, borders[:-1], side="right"), np.searchsorted(ends, borders[1:])
    touched = ends[np.minimum(last, len(ends) - 1)] - (ends - sizes)[np.minimum(first, len(ends) - 1)]
    return float(np.max(touched) - ends[-1] / ranks)


def _frees_early(columns: Columns) -> Array:
    """Reducing while backward runs lets stage 1 free whole gradients as stage 2 does, when there is one micro-step."""
    c = columns
    early: Array = c.zero12 & (c.reduces_each == 0) & (c.grad_accum == 1) & (c.overlap_comm > 0) & (c.grad_bytes <= c.compute_bytes)
    return early


def _gradient_life(setup: TrainingSetup, numbers: Numbers, columns: Columns, share: Share) -> dict[str, Array]:
    """Share of the gradients that exists at each moment: they grow from the head down to the first block.

    They exist all along where they are accumulated over micro-steps, at stage 3, whose flat buffer is made at the start, and
    under DDP, whose gradients are views of buckets that stay.
    A step inside backward frees each block's gradients at once.
    """
    c = columns
    # Stages 1 and 2 make a buffer for their whole part when the first of it is reduced: the last rank with the head.
    at_once = c.zero12 & (c.state_ranks > 1) & ((c.reduces_each > 0) | _frees_early(c))
    flat = c.zero3 | c.zero12 & (c.reduces_each == 0) & (c.grad_bytes > c.compute_bytes)
    buckets = (c.ddp > 0) & (c.dp > 1)
    early = np.where((c.grad_accum > 1) | flat | buckets, 1.0, 0.0)
    sharded = c.copies_units
    # The head's gradient comes first; FSDP2 keeps it whole until its root group is reduced, last of all.
    head = np.where(sharded, 0.0, min(1.0, numbers.head / max(1, numbers.total)) * (not numbers.adapter))
    per_block = np.minimum(1.0, share.block / np.maximum(1.0, share.inside + share.outside))
    # DeepSpeed steps after backward whatever is asked.
    once = np.where(c.deepspeed > 0, 1.0, per_block) if setup.recipe.optimizer_in_backward else 1.0

    def after(blocks: Array | float) -> Array:
        """Share of the gradients there when this many blocks are done."""
        grown = np.minimum(1.0, head + per_block * np.maximum(0, blocks))
        share_there: Array = np.maximum(np.where(at_once, 1.0, early), grown) * once
        return share_there

    # Stage 1 keeps whole gradients while it accumulates; the reduction in the last backward leaves its own part of them.
    reduced = c.zero12 & (c.reduces_each == 0) & (c.grad_bytes <= c.compute_bytes) & (c.offload_optimizer == 0)
    left = np.where(reduced & ~_frees_early(c), 1.0 / c.state_ranks, 1.0)
    # FSDP2 reduces the root group last: until then its gradients are whole, and counted as such.
    inside_frac = share.inside / np.maximum(1.0, share.inside + share.outside)
    before_root = np.where(sharded, np.maximum(early, inside_frac), 1.0)
    return {
        "initialisation": np.where(flat, 1.0, 0.0),
        "forward": early * once,
        "loss": early * once,
        "backward": after(0),
        "backward_second": after(1),
        "backward_next": after(share.layers - 2),
        "backward_first": after(share.layers - 1),
        "reduction": before_root * once,
        STEP: left * once,
    }


def _after_init(alive: dict[str, float]) -> dict[str, float]:
    """Adam's moments are created at the first step, so they are missing while the engine initialises."""
    return {k: v for k, v in alive.items() if k != "initialisation"}
