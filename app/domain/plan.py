"""The answer: settings chosen, what they cost, and what was passed over. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Verdict = Literal["fits", "tight", "does_not_fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that must be written into a configuration file to run one candidate.

    Bucket and group sizes are in elements (``_numel``), as DeepSpeed takes them.

    Attributes:
        framework: deepspeed, fsdp2 or ddp.
        strategy: ddp, zero1, zero2, zero3, fsdp_full, fsdp_grad_op or hsdp.
        world_size, gpus_per_node, nodes: the devices used.
        dp_replicate, dp_shard: data-parallel mesh; parameters of hsdp are sharded over dp_shard and replicated dp_replicate times.
        tensor_parallel, pipeline_parallel, sequence_parallel, expert_parallel: degrees of the other mesh axes.
        shard_group_size: ranks that together hold one copy of the optimizer states.
        hpz_group_size: ranks that share ZeRO++'s secondary parameter copy; 1 = off.
        quantized_weights, quantized_gradients: ZeRO++ gathers parameters in int8 (qwZ), reduces gradients in int4 (qgZ).
        seq_len: tokens per sequence before any sequence-parallel split.
        micro_batch, grad_accum, global_batch: sequences per rank per forward, micro-steps per step, sequences per step.
        param_dtype: dtype the trained weights are stored in between steps on the rank that owns them.
        grad_dtype: dtype gradients are accumulated in.
        reduce_dtype: dtype gradients travel in.
        master_weights: a fp32 master copy exists.
        optimizer_state_dtype: dtype of the optimizer's moments.
        offload_optimizer_ratio: share of an offloaded optimizer that is updated on the host, the rest on the GPU.
    """

    framework: str
    strategy: str
    world_size: int
    gpus_per_node: int
    nodes: int
    dp_replicate: int
    dp_shard: int
    tensor_parallel: int
    pipeline_parallel: int
    sequence_parallel: int
    expert_parallel: int
    shard_group_size: int
    hpz_group_size: int
    seq_len: int
    micro_batch: int
    grad_accum: int
    global_batch: int
    activation_checkpointing: str
    activation_offload: bool
    offload_optimizer: str
    offload_parameters: str
    precision: str
    param_dtype: str
    grad_dtype: str
    reduce_dtype: str
    master_weights: bool
    optimizer: str
    optimizer_implementation: str
    optimizer_state_dtype: str
    optimizer_in_backward: bool
    attention: str
    fused_loss: bool
    compile: bool
    reduce_bucket_numel: int
    prefetch_bucket_numel: int
    param_persistence_numel: int
    max_live_numel: int
    max_reuse_distance_numel: int
    sub_group_numel: int
    overlap_comm: bool
    gradient_clipping: float = 1.0
    quantized_weights: bool = False
    quantized_gradients: bool = False
    offload_optimizer_ratio: float = 1.0

    @property
    def dp(self) -> int:
        """Ranks that see different data: the global batch is micro_batch × grad_accum × dp."""
        return self.dp_replicate * self.dp_shard

    @property
    def divides_states(self) -> bool:
        """Whether DDP's ranks each hold the optimizer's states of some tensors (ZeroRedundancyOptimizer)."""
        return (self.framework, self.strategy) == ("ddp", "zero1")


class TermResult(NamedTuple):
    """One line of a ledger.

    Attributes:
        name, category: as in docs/method; the category fixes the colour on the page.
        value: bytes or seconds alive at (or spent in) what the ledger is of.
        moment: when it exists: always, forward, backward, step.
        formula: the equation with this candidate's numbers.
        equation, source, exactness, changes_it: from the term's card.
    """

    name: str
    category: str
    value: float
    moment: str
    formula: str
    equation: str
    source: str
    exactness: str
    changes_it: str = ""


class MomentTerm(NamedTuple):
    """One line at a moment that is not the peak: what it holds then, without the formula."""

    name: str
    category: str
    value: float
    exactness: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentResult:
    """What is allocated on a GPU at one moment of the step."""

    name: str
    allocated_bytes: int
    terms: tuple[MomentTerm, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Memory of the busiest GPU: three totals, what the run fails without, the moment they peak at and how sure that is.

    ``busiest_rank`` says which GPU that is.
    ``expandable_bytes`` is the reserved total with expandable segments, as launch.sh sets them; ``peak_reserved_bytes`` without.
    """

    terms: tuple[TermResult, ...]
    moments: tuple[MomentResult, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    expandable_bytes: int
    device_bytes: int
    needed_bytes: int
    peak_moment: str
    capacity_bytes: int
    fit_probability_frac: float
    interval_90_bytes: tuple[int, int]
    busiest_rank: str = "all ranks are alike"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Memory of one node's host or disks."""

    terms: tuple[TermResult, ...]
    peak_bytes: int
    capacity_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationTerm:
    """One collective of the step: how often and how much one GPU sends, and how much of its time is not hidden."""

    name: str
    group_size: int
    spans_nodes: bool
    bytes_per_step: int
    seconds: float
    exposed_s: float
    formula: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Where one optimizer step goes, in seconds, and the rates that follow."""

    step_s: float
    compute_s: float
    exposed_communication_s: float
    optimizer_s: float
    offload_s: float
    tokens_per_s_per_gpu: float
    tokens_per_s: float
    mfu_frac: float
    interval_90_s: tuple[float, float]
    terms: tuple[TermResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration with everything it costs."""

    settings: Settings
    verdict: Verdict
    gpu: GpuMemory
    host: PoolMemory
    nvme: PoolMemory
    communication: tuple[CommunicationTerm, ...]
    time: StepTime
    usd_per_hour: float | None
    usd_per_billion_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder from the simplest strategy to the most complex one."""

    label: str
    settings: dict[str, Any]
    verdict: Verdict
    why_not: str
    chosen: bool = False
    step_s: float | None = None
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Candidates left out for one reason, counted."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """Something the user should know, with its fix."""

    code: str
    severity: Literal["info", "warning", "error"]
    message: str
    field: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """A change that would make it fit, computed."""

    label: str
    changes: dict[str, Any]
    device_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A generated file."""

    filename: str
    media_type: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """The model as understood."""

    name: str
    total_params: int
    active_params: int | None
    trainable_params: int
    counted_by: str
    inferred: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionSummary:
    """Another model on the same GPUs: what it is, and the bytes it holds on each GPU while other models run."""

    role: str
    name: str
    total_params: int
    trains: bool
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole answer to one request.

    ``recommended`` is what to run; where nothing fits it is the candidate that comes nearest, and ``ways_out`` says what would fit.
    """

    verdict: Verdict
    summary: str
    model: ModelSummary
    recommended: Candidate
    ideal_states_bytes: dict[str, int]
    ideal_traffic_bytes: dict[str, int]
    alternatives: tuple[Candidate, ...]
    ladder: tuple[Rung, ...]
    rejected: tuple[Rejection, ...]
    candidates: int
    feasible: int
    elapsed_ms: float
    warnings: tuple[PlanWarning, ...] = ()
    ways_out: tuple[WayOut, ...] = ()
    shortfall_bytes: int = 0
    companions: tuple[CompanionSummary, ...] = ()
    files: tuple[Artifact, ...] = field(default=())
