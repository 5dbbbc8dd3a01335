"""Evaluate candidates: memory and time of each, which of them fit, and the few figures by which they are compared.

Small tables are evaluated flat, with every line kept. Larger ones are scanned: memory of structures beside their batches as sums,
time only for candidates that fit. What is shown of a scanned table is evaluated again, flat, so that it is what a request that
pins it would get.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from app.domain.memory.peak import Memory, MemoryTotals, evaluate_memory
from app.domain.memory.sureness import peak_ratios, safe_bytes
from app.domain.parallel.strategy import STRATEGIES
from app.domain.search.constraints import Constraints
from app.domain.search.sizes import KEPT_FRACS, Sized, best_sizes, takes_ratio, takes_sizes, with_other_sizes
from app.domain.search.space import Space, build_space
from app.domain.search.table import Outline, candidate_columns
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.speed.result import Speed
from app.domain.speed.step import evaluate_speed

HOST_SAFE_FRAC = 0.9
"""Share of a node's memory up to which a plan is called safe: processes, page cache and data workers take the rest."""

OVER_GPU = "needs more GPU memory than there is"
OVER_HOST = "fits the GPU but needs more host memory than the node has"
OVER_DISK = "fits GPU and host but needs more disk than the node has"
NO_DISK = "needs more disk than the node has, of which none is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Which candidates fit, in the shapes of their columns.

    Attributes:
        fits: device, host and disk stay within capacity.
        safe: they do so with a probability of at least 80 %, and nothing makes the allocator give cached blocks back.
        script_fits: there is also room for what the script written for it needs more than planned.
        over_bytes: bytes it cannot do without above the usable capacity (negative where there is room).
        peak_ratios: lower and upper end of measured over predicted peaks.
    """

    fits: Array
    safe: Array
    script_fits: Array
    over_bytes: Array
    host_over_bytes: Array
    nvme_over_bytes: Array
    peak_ratios: tuple[Array, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What candidates are compared by, an entry a candidate.

    Attributes:
        fits, safe, over_bytes, host_over_bytes, nvme_over_bytes: see ``Verdicts``.
        device_bytes: per GPU at the peak.
        tokens_per_s: of the whole job; of no meaning where a candidate does not fit.
        complexity: order of preference between plans that are equally fast, lower is simpler.
        row, group, replicas, micro_batch, tp, pp, sp, ep: columns of the same names.
        offloaded: whether optimizer or parameters are.
        written: whether the product writes a training script for it: none is written for pipeline, sequence or expert axes, and one that
            would not fit where the plan does counts as none.
        rejected: candidates left out, by reason.
    """

    fits: Array
    safe: Array
    over_bytes: Array
    host_over_bytes: Array
    nvme_over_bytes: Array
    device_bytes: Array
    tokens_per_s: Array
    complexity: Array
    row: Array
    group: Array
    replicas: Array
    micro_batch: Array
    tp: Array
    pp: Array
    sp: Array
    ep: Array
    offloaded: Array
    written: Array
    rejected: dict[str, int]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def preferred(self) -> Array:
        """The best class of candidates there is: with a script before without, safe before merely fitting."""
        classes = (self.safe & self.written, self.fits & self.written, self.safe, self.fits)
        return next((members for members in classes if members.any()), self.fits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Some candidates with everything they cost, an entry each.

    Behind the candidates the first ones may follow again, with other sizes of DeepSpeed's buckets (``sized``).
    """

    setup: TrainingSetup
    numbers: Numbers
    columns: Columns
    memory: Memory
    speed: Speed
    verdicts: Verdicts
    tokens_per_s: Array
    complexity: Array
    sized: Sized

    @property
    def fits(self) -> Array:
        """See ``Verdicts``."""
        return self.verdicts.fits

    @property
    def safe(self) -> Array:
        """See ``Verdicts``."""
        return self.verdicts.safe

    @property
    def over_bytes(self) -> Array:
        """See ``Verdicts``."""
        return self.verdicts.over_bytes

    @property
    def written(self) -> Array:
        """See ``Table``."""
        written: Array = is_written(self.setup, self.columns) & self.verdicts.script_fits
        return written

    def table(self, rejected: Counter[str] | None = None) -> Table:
        """What its candidates are compared by."""
        v, c, size = self.verdicts, self.columns, self.sized.shown
        entries = {
            "fits": v.fits, "safe": v.safe, "over_bytes": v.over_bytes, "host_over_bytes": v.host_over_bytes,
            "nvme_over_bytes": v.nvme_over_bytes, "device_bytes": self.memory.device, "tokens_per_s": self.tokens_per_s,
            "complexity": self.complexity, "row": c.row, "group": c.group, "replicas": c.replicas, "micro_batch": c.micro_batch,
            "tp": c.tp, "pp": c.pp, "sp": c.sp, "ep": c.ep, "offloaded": is_offloaded(c), "written": self.written,
        }  # fmt: skip
        some = {name: column[:size] for name, column in entries.items()}
        over = (some["over_bytes"], some["host_over_bytes"], some["nvme_over_bytes"])
        return Table(**some, rejected=dict(rejected or {}) | rejections(*over))


def evaluate(setup: TrainingSetup, constraints: Constraints) -> Evaluation:
    """Build the space for one pool and evaluate every candidate flat, lines and all.

    Raises:
        InvalidRequestError: the pins contradict each other, the model or the devices.
    """
    space = build_space(setup, constraints)
    return evaluate_candidates(setup, constraints, space, np.arange(len(space)))


def evaluate_candidates(setup: TrainingSetup, constraints: Constraints, space: Space, candidates: Array, again: int = 0) -> Evaluation:
    """Evaluate some candidates of a space flat, and the first ``again`` of them with other sizes as well if they have any."""
    numbers = setup.numbers
    columns = candidate_columns(space, setup, numbers, candidates)
    sized = Sized(len(columns))
    if takes_sizes(columns)[:again].any():
        sized = Sized(len(columns), again, _kept_fracs(setup, constraints, columns, again))
        columns = with_other_sizes(columns, sized, numbers.trainable)
    memory = evaluate_memory(setup, numbers, columns)
    speed = evaluate_speed(setup, numbers, columns, memory.share)
    return Evaluation(
        setup=setup, numbers=numbers, columns=columns, memory=memory, speed=speed, verdicts=judge(setup, constraints, columns, memory),
        tokens_per_s=speed.tokens_per_step / speed.step_s, complexity=complexity_of(columns), sized=sized,
    )  # fmt: skip


def _kept_fracs(setup: TrainingSetup, constraints: Constraints, columns: Columns, again: int) -> tuple[float, ...]:
    """Shares of an offloaded optimizer that may stay on the GPU: none where offload is pinned, which is taken as whole."""
    free = constraints.offload_optimizer is None and setup.recipe.optimizer == "adamw" and takes_ratio(columns)[:again].any()
    return (0.0, *KEPT_FRACS) if free else (0.0,)


def with_best_sizes(evaluation: Evaluation, place: int) -> int:
    """Where a candidate is with the sizes that suit it best; its own place where it has none or none were tried."""
    others = evaluation.sized.ladder(place)
    if not len(others) or not takes_sizes(evaluation.columns)[place]:
        return place
    classes = evaluation.fits * 1 + evaluation.safe
    return best_sizes(np.concatenate(([place], others)), evaluation.speed.step_s, evaluation.memory.needed, classes)


def judge(setup: TrainingSetup, constraints: Constraints, columns: Columns, memory: Memory | MemoryTotals) -> Verdicts:
    """Compare what is needed with what there is."""
    node, capacity = setup.pool.node, setup.capacity_bytes
    over = memory.needed - capacity
    # Memory that is only assumed makes a plan doubtful, never impossible.
    host_over = memory.host_bytes - (np.inf if node.host_memory_assumed else host_capacity_bytes(setup) or np.inf)
    nvme_over = memory.nvme_bytes - _disk(setup, columns, pinned="nvme" in (constraints.offload_optimizer, constraints.offload_parameters))
    fits = (over <= 0) & (host_over <= 0) & (nvme_over <= 0)
    ratios = peak_ratios(setup, columns)
    safe = fits & (memory.roomy <= capacity) & (safe_bytes(memory.needed, ratios[1]) <= node.gpu.memory_bytes)
    safe &= memory.host_bytes <= HOST_SAFE_FRAC * (node.host_memory_bytes or np.inf)
    # A host that is not known cannot be said to hold what is offloaded to it.
    if node.host_memory_bytes is None:
        safe &= (columns.offload_optimizer == 0) & (columns.offload_parameters == 0) & (columns.act_offload == 0)
    return Verdicts(
        fits=fits, safe=safe, script_fits=(over + memory.script_more <= 0) | (memory.script_more == 0),
        over_bytes=over, host_over_bytes=host_over, nvme_over_bytes=nvme_over, peak_ratios=ratios,
    )  # fmt: skip


def host_capacity_bytes(setup: TrainingSetup) -> int | None:
    """Memory of one node a plan may use, the headroom kept free as on the GPU; None where it is not known."""
    there = setup.pool.node.host_memory_bytes
    return None if there is None else int(there * (1 - setup.headroom_frac))


def with_recipe(setup: TrainingSetup, **changes: object) -> TrainingSetup:
    """The same setup under a changed recipe."""
    return replace(setup, recipe=replace(setup.recipe, **changes))  # type: ignore[arg-type]


def _disk(setup: TrainingSetup, columns: Columns, *, pinned: bool) -> Array:
    """Disk space a candidate may use: unknown space counts as enough where NVMe is pinned, never otherwise."""
    space = setup.pool.node.nvme_bytes
    uses = (columns.offload_optimizer == 2) | (columns.offload_parameters == 2)
    unknown = np.inf if pinned else 0.0
    return np.where(uses, unknown if space is None else float(space), np.inf)


def rejections(over: Array, host_over: Array, nvme_over: Array) -> dict[str, int]:
    """Candidates that do not fit, by the first thing there is too little of."""
    passed_over = np.isposinf(over)
    gpu, host, disk = (over > 0) & ~passed_over, host_over > 0, nvme_over > 0
    counts = {OVER_GPU: int(gpu.sum()), OVER_HOST: int((~gpu & host & ~passed_over).sum()), OVER_DISK: int((~gpu & ~host & disk).sum()),
              NO_DISK: int(passed_over.sum())}  # fmt: skip
    return {reason: count for reason, count in counts.items() if count}


def is_offloaded(columns: Columns | Outline) -> Array:
    """Whether optimizer or parameters are elsewhere."""
    offloaded: Array = (columns.offload_optimizer > 0) | (columns.offload_parameters > 0)
    return offloaded


def is_written(setup: TrainingSetup, columns: Columns | Outline | Table) -> Array:
    """Whether a training script is written: for none of ``UNWRITTEN_AXES``, nor under DeepSpeed for a fused loss on tensor ranks, which
    puts a layer of its own in place of the head the loss is fused into."""
    written: Array = columns.pp * columns.sp * columns.ep == 1
    if setup.recipe.fused_loss:
        deepspeed = np.array([s.framework == "deepspeed" for s in STRATEGIES])[columns.row]
        written &= ~(deepspeed & (columns.tp > 1))
    return written


def complexity_of(columns: Columns | Outline) -> Array:
    """Simpler first: the strategy's own order, then each extra moving part. Documented in docs/adr/0002."""
    c = columns
    base = np.array([s.complexity for s in STRATEGIES])[c.row]
    offload = (c.offload_optimizer > 0) * 10 + (c.offload_parameters > 0) * 10 + (c.offload_optimizer == 2) * 20
    extras = (c.act_offload > 0) * 5 + (c.hpz > 1) * 2 + (c.checkpointing == 1) * 0.5 + (c.checkpointing == 2) * 0.25
    quantised = (c.qwz > 0) * 3 + (c.qgz > 0) * 4
    # More than any plain data-parallel plan has, so that one within 5 % always comes first.
    axes = (c.tp > 1) * 60 + (c.sp > 1) * 70 + (c.pp > 1) * 80 + (c.ep > 1) * 80
    total: Array = base + offload + extras + c.lean * 0.1 + quantised + axes
    return total
