"""The frozen bundle every formula reads: model, recipe and devices, the numbers that follow, and the candidate columns.

``TrainingSetup`` holds what is the same for all candidates of one search; ``Columns`` holds one array entry a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.domain.cluster.cluster import Pool
from app.domain.model import parameters as count
from app.domain.model.architecture import Architecture, Role
from app.domain.recipe.adapter import adapter_params, base_weight_bytes, quantised_params, saved_module_params
from app.domain.recipe.companion import Companion
from app.domain.recipe.optimizer import OPTIMIZERS, state_elements_per_param
from app.domain.recipe.precision import StoredDtypes, dtype_bytes
from app.domain.recipe.recipe import Recipe

Array = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Constants that are not from a specification; each has its source and range in ``app/catalog``.

    Attributes:
        context_bytes: CUDA context of one process.
        nccl_bytes: buffers of the communicators once a collective has run.
        reserved_frac_fsdp2, reserved_frac_deepspeed, reserved_frac_whole: memory the allocator holds above the live tensors, as a
            share of them: under FSDP2, under DeepSpeed on several ranks, and where nothing is gathered.
        reserved_logit_bytes: bytes per logit that stay reserved beside them where the loss is not fused, outside FSDP2.
        expandable_frac_gathered, expandable_frac_whole: the same shares with expandable segments, whose blocks grow instead of
            leaving holes.
        needed_frac: memory above the live tensors that cannot be given back when it runs short, as a share of them.
        matmul_frac: share of the dense peak that large training matmuls reach, by GPU architecture.
        operand_reread: how often a product's operands and result pass through HBM.
        adapter_reread: the same for low-rank products, with the dropout, scaling and sum beside them.
        attention_frac: share of the dense peak that the attention kernel reaches, by GPU architecture.
        memory_frac: share of the HBM bandwidth that element-wise kernels reach.
        elementwise_bytes_factor: HBM bytes element-wise work moves for one saved activation byte.
        overlap_frac: share of a hideable transfer that really runs behind compute, by framework.
        layer_launch_s: time one block's kernels need at least, however small they are.
        zero3_hook_s: what DeepSpeed's stage-3 hooks add to that.
        unpack_hbm_bytes: HBM bytes moved to unpack one quantised weight.
        recompute_elementwise_frac: element-wise traffic that full recompute adds, as a share.
        compile_elementwise_frac, compile_launch_frac: what a compiler leaves of element-wise traffic and of launches.
        logit_hbm_bytes: HBM bytes the loss moves for one logit, forward and backward.
        peak_ratio: ends of the shortest interval that holds 90 % of measured over predicted peaks, by situation
            (``situation_of``).
        time_interval_frac: half width of the 90 % interval of step time.
    """

    context_bytes: float
    nccl_bytes: float
    reserved_frac_fsdp2: float
    reserved_frac_deepspeed: float
    reserved_frac_whole: float
    reserved_logit_bytes: float
    expandable_frac_gathered: float
    expandable_frac_whole: float
    needed_frac: float
    matmul_frac: dict[str, float]
    operand_reread: float
    adapter_reread: float
    attention_frac: dict[str, float]
    memory_frac: float
    elementwise_bytes_factor: float
    overlap_frac: dict[str, float]
    layer_launch_s: float
    zero3_hook_s: float
    unpack_hbm_bytes: float
    recompute_elementwise_frac: float
    compile_elementwise_frac: float
    compile_launch_frac: float
    logit_hbm_bytes: float
    peak_ratio: dict[str, list[float]]
    time_interval_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Counts of the model under this recipe, in elements.

    Attributes:
        total, trainable, frozen: parameters.
        expert: routed expert parameters, part of total.
        inside: parameters of the repeated blocks; ``outside`` the rest.
        block: parameters of the largest block.
        embedding, head: parameters of lookup tables and of the output head (the table again when tied).
        largest_tensor: elements of the largest single tensor; ``largest_trained`` of the largest one that is trained.
        num_layers: blocks one forward of the main sequence runs.
        adapter: parameters of the low-rank factors and of the modules trained in full beside them.
        states_per_param: optimizer state elements for one trained parameter.
        quantised: parameters stored quantised, and quantised_bytes what they take.
        trainable_frac: trained share of a block.
    """

    total: int
    trainable: int
    frozen: int
    expert: int
    inside: int
    outside: int
    block: int
    embedding: int
    head: int
    largest_tensor: int
    largest_trained: int
    num_layers: int
    adapter: int
    states_per_param: float
    quantised: int
    quantised_bytes: float
    trainable_frac: float


class _Same:
    """A model that equals itself only: comparing all its tensors would take longer than what is kept for it saves."""

    __slots__ = ("model",)

    def __init__(self, model: Architecture) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.model is self.model


@lru_cache(maxsize=256)
def _memo_of(_model: _Same, _recipe: Recipe) -> dict[Hashable, Any]:
    """What has been worked out for this model under this recipe; the least used pair makes room."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """What stays the same over all candidates; ``companions`` are other models on the same GPUs."""

    model: Architecture
    recipe: Recipe
    pool: Pool
    rates: Rates
    headroom_frac: float
    companions: tuple[Companion, ...] = ()
    memo: dict[Hashable, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memo", _memo_of(_Same(self.model), self.recipe))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What follows from model and recipe alone, made the first time it is asked for and kept for the next setups of the two."""
        if key not in self.memo:
            self.memo[key] = make()
        made: T = self.memo[key]
        return made

    @property
    def numbers(self) -> Numbers:
        """Counts of the model under the recipe."""
        return self.once("numbers", lambda: numbers_of(self.model, self.recipe))

    @property
    def capacity_bytes(self) -> int:
        """Memory of one device a plan may use: the driver's figure less the headroom."""
        return int(self.pool.node.gpu.memory_bytes * (1 - self.headroom_frac))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One array entry a candidate; int64 unless said otherwise. Booleans are 0 or 1 so that terms can multiply by them.

    Attributes:
        row: index into ``STRATEGIES``.
        dp: data ranks; zero_ranks: ranks that states are sharded over (data · sequence ranks).
        param_ranks, grad_ranks, state_ranks: ranks that hold one copy together.
        group: ranks of the shard group; replicas: shard groups; hpz: ranks of ZeRO++'s secondary copy, 1 without.
        qwz, qgz: 1 where ZeRO++ quantises the parameters it gathers, and the gradients it reduces.
        checkpointing: 0 none, 1 selective, 2 full.
        offload_optimizer, offload_parameters: 0 none, 1 cpu, 2 nvme.
        kept_frac: share of the optimizer that stays on the GPU although it is offloaded (DeepSpeed's ``ratio`` is the rest); float.
        lean: small buckets and no gather-ahead, for when memory is short.
        bucket, prefetch, reuse, sub_group, persistence: DeepSpeed's sizes in elements.
        deepspeed, fsdp2, ddp: one of the three is 1.
        *_bytes: float bytes of one element of each kind under the candidate's framework.
    """

    row: Array
    world_size: Array
    tp: Array
    pp: Array
    sp: Array
    ep: Array
    dp: Array
    zero_ranks: Array
    group: Array
    replicas: Array
    hpz: Array
    qwz: Array
    qgz: Array
    param_ranks: Array
    grad_ranks: Array
    state_ranks: Array
    gathers: Array
    keeps_gathered: Array
    all_reduce: Array
    reduces_each: Array
    gathers_after: Array
    deepspeed: Array
    fsdp2: Array
    ddp: Array
    micro_batch: Array
    grad_accum: Array
    checkpointing: Array
    act_offload: Array
    offload_optimizer: Array
    offload_parameters: Array
    kept_frac: Array
    lean: Array
    bucket: Array
    prefetch: Array
    reuse: Array
    sub_group: Array
    persistence: Array
    overlap_comm: Array
    compute_bytes: Array
    param_bytes: Array
    frozen_bytes: Array
    master_bytes: Array
    duplicate_bytes: Array
    grad_bytes: Array
    reduce_bytes: Array
    state_bytes: Array
    autocast: Array

    def __len__(self) -> int:
        return len(self.row)

    @property
    def shape(self) -> tuple[int, ...]:
        """What the columns broadcast to: structure beside batches."""
        return np.broadcast_shapes(self.row.shape, self.micro_batch.shape)

    @property
    def zero3(self) -> Array:
        """Whether DeepSpeed's partitioning engine runs: stage 3, on any number of ranks, one included."""
        stage3: Array = (self.deepspeed > 0) & (self.reduces_each > 0) & (self.gathers_after == 0)
        return stage3

    @property
    def zero12(self) -> Array:
        """Whether DeepSpeed's optimizer of stages 1 and 2 runs, on any number of ranks."""
        stages12: Array = (self.deepspeed > 0) & (self.gathers_after > 0)
        return stages12

    @property
    def away(self) -> Array:
        """Share of the optimizer's states that is not on the GPU: 0 or 1, or in between where offload keeps some of them there."""
        away: Array = (self.offload_optimizer > 0) * (1.0 - self.kept_frac)
        return away

    @property
    def copies_units(self) -> Array:
        """FSDP2 computes on copies of its shards: gathered over ranks, fetched from the host, or on one rank cast for compute."""
        cast = np.minimum(self.param_bytes, self.frozen_bytes) > self.compute_bytes
        copies: Array = (self.fsdp2 > 0) & ((self.param_ranks > 1) | (self.offload_parameters > 0) | cast)
        return copies

    def take(self, rows: Array) -> Columns:
        """The candidates at these indices (or where this mask is true)."""
        return Columns(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def numbers_of(model: Architecture, recipe: Recipe) -> Numbers:
    """Count what the formulas need, for this model under this recipe."""
    total, outside = count.total_params(model), count.outside_params(model)
    adapter = 0
    if recipe.adapter:
        adapter = adapter_params(model, recipe.adapter) + saved_module_params(model, recipe.adapter)
    trainable = adapter if recipe.adapter else min(total, recipe.trainable_params or total)
    frozen = total if recipe.adapter else total - trainable
    embedding = sum(w.numel for w in model.weights if w.role is Role.EMBEDDING)
    head = model.vocab_size * model.hidden_size
    layers = model.num_layers
    owned = sum(s.owned for s in model.stacks if s.part == "main")
    # The user's own total differs from the tensors counted: the difference sits in the blocks, evenly.
    adjusted = (total - count.counted_params(model)) / max(1, owned)
    block = max(count.block_params(s.block) for s in model.stacks if s.part == "main") + int(adjusted)
    return Numbers(
        total=total, trainable=trainable, frozen=frozen,
        expert=sum(count.block_expert_params(s.block) * s.owned for s in model.stacks),
        inside=total - outside, outside=outside, block=max(1, block), embedding=embedding, head=head,
        largest_tensor=count.largest_tensor_numel(model), largest_trained=_largest_trained(model, recipe),
        num_layers=layers, adapter=adapter,
        states_per_param=state_elements_per_param(model, OPTIMIZERS[recipe.optimizer]),
        quantised=_quantised(model, recipe), quantised_bytes=_quantised_bytes(model, recipe),
        trainable_frac=trainable / total,
    )  # fmt: skip


def _largest_trained(model: Architecture, recipe: Recipe) -> int:
    """Elements of the largest trained tensor: a low-rank factor where only adapters are trained."""
    adapter = recipe.adapter
    if adapter is None or saved_module_params(model, adapter):
        return count.largest_tensor_numel(model)
    sides = [max(w.shape) for s in model.stacks for w in s.block.weights if adapter.covers(w)]
    return adapter.rank * max(sides, default=0)


def _quantised(model: Architecture, recipe: Recipe) -> int:
    """Parameters stored quantised: no more than the model has, where a user's own total is less than its layers add up to."""
    if not (recipe.adapter and recipe.adapter.kind == "qlora"):
        return 0
    return min(quantised_params(model), count.total_params(model))


def _quantised_bytes(model: Architecture, recipe: Recipe) -> float:
    """Bytes of all quantised layers at their stored width; 0 without a quantised base."""
    return _quantised(model, recipe) * base_weight_bytes(recipe.adapter.base_bits) if recipe.adapter else 0.0


def frozen_bytes_each(numbers: Numbers, dtypes: StoredDtypes) -> float:
    """Bytes of one frozen parameter, averaged: beside a quantised base, embeddings and head keep the dtype they were loaded in.

    peft's preparation would make them fp32; trainers cast embeddings and head back, and published runs hold them in 16 bits
    between steps (7.24e9 weights of Mistral take 4.01 GiB with their adapters).
    """
    return (numbers.quantised_bytes + (numbers.total - numbers.quantised) * dtype_bytes(dtypes.frozen)) / numbers.total


def state_bytes_each(numbers: Numbers, recipe: Recipe, framework: str, dtypes: StoredDtypes) -> float:
    """Bytes of the optimizer's states for one trained parameter; DeepSpeed keeps Muon's momenta in the dtype gradients travel in."""
    fixed = OPTIMIZERS[recipe.optimizer].fixed_bytes_per_element
    width = fixed if fixed is not None and not recipe.optimizer_state_dtype else dtype_bytes(dtypes.state)
    if recipe.optimizer != "muon" or framework != "deepspeed":
        return numbers.states_per_param * width
    momenta = 2 - numbers.states_per_param  # share of the parameters that have one momentum; the others have Adam's two moments
    return momenta * dtype_bytes(dtypes.reduce) + 2 * (1 - momenta) * width


def dtype_columns(dtypes: dict[str, StoredDtypes], framework: Sequence[str], numbers: Numbers, recipe: Recipe) -> dict[str, Array]:
    """Bytes-per-element columns: each framework's dtypes spread over the strategies that use it.

    Args:
        framework: name of each strategy's framework.
    """
    names = list(dtypes)
    index = np.array([names.index(f) for f in framework])

    def spread(values: list[float]) -> Array:
        column: Array = np.array(values, dtype=np.float64)[index]
        return column

    rows = [dtypes[n] for n in names]
    return {
        "compute_bytes": spread([dtype_bytes(d.compute) for d in rows]),
        "param_bytes": spread([dtype_bytes(d.param) for d in rows]),
        "frozen_bytes": spread([frozen_bytes_each(numbers, d) for d in rows]),
        "master_bytes": spread([dtype_bytes(d.master) for d in rows]),
        "duplicate_bytes": spread([dtype_bytes(d.param) * d.duplicate_master for d in rows]),
        "grad_bytes": spread([dtype_bytes(d.grad) for d in rows]),
        "reduce_bytes": spread([dtype_bytes(d.reduce) for d in rows]),
        "state_bytes": spread([state_bytes_each(numbers, recipe, name, d) for name, d in dtypes.items()]),
        "autocast": spread([float(d.autocast) for d in rows]),
    }
