"""Reasoned rejections: what no framework does together. Each rule returns the reason, or an empty string.

A rule is stated here once. The search passes over what it rejects; ``pinned.py`` refuses a request that pins it.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.companions import setup_of
from app.domain.model.parameters import is_moe
from app.domain.parallel.mesh import Degrees
from app.domain.parallel.strategy import Strategy
from app.domain.setup import TrainingSetup

STAGES_OF_PIPELINE = ("ddp", "zero1")
"""Strategies DeepSpeed's pipeline engine takes; it refuses stages 2 and 3 (runtime/pipe/engine.py)."""


NO_OFFLOAD = {"ddp": "DDP has no offload", "deepspeed": "DeepSpeed stage 0 has no offload: its optimizer steps on the GPU"}
FSDP2_OFFLOAD = "FSDP2 offloads parameters, gradients and optimizer together, to host memory only"


def why_not_offload(strategy: Strategy, pair: tuple[int, int]) -> str:
    """Offload the framework does not do, or parses and ignores."""
    if pair == (0, 0):
        return ""
    if strategy.states == "none" or strategy.framework == "ddp":
        return NO_OFFLOAD[strategy.framework]
    if strategy.framework == "fsdp2":
        return "" if pair == (1, 1) else FSDP2_OFFLOAD
    if strategy.parameters == "none":
        return "" if pair == (1, 0) else "DeepSpeed offloads parameters, or anything to NVMe, only at stage 3"
    return ""


_BEFORE_VOLTA = ("maxwell", "pascal")
"""Architectures of compute capability 5 and 6. Source: DeepSpeed 0.19.8 accelerator/cuda_accelerator.py ``is_fp16_supported``."""


def why_not_device(setup: TrainingSetup, strategy: Strategy) -> str:
    """A compute dtype that DeepSpeed refuses on this device."""
    gpu = setup.pool.node.gpu
    if strategy.framework != "deepspeed" or setup.recipe.precision != "fp16" or gpu.architecture not in _BEFORE_VOLTA:
        return ""
    return f"DeepSpeed refuses fp16 on GPUs before compute capability 7.0, as {gpu.name} is"


def why_not_precision(setup: TrainingSetup, strategy: Strategy, offload: tuple[int, int]) -> str:
    """Precisions that DeepSpeed does not offer: fp16 on old devices, and pure low precision in some combinations."""
    recipe = setup.recipe
    if reason := why_not_device(setup, strategy):
        return reason
    if strategy.framework == "ddp" and strategy.states == "all":
        return _why_not_redundancy(setup)
    if strategy.framework != "deepspeed" or recipe.master_weights or recipe.precision == "fp32":
        return ""
    if strategy.states == "none":
        return "DeepSpeed stage 0 keeps a fp32 master copy whatever is asked"
    if recipe.precision == "fp16" and (offload[0] != 1 or recipe.optimizer != "adamw"):
        return "DeepSpeed trains fp16 without a fp32 master only with AdamW offloaded to the CPU"
    return ""


_REDUNDANCY_OPTIMIZERS = ("adamw", "lion", "sgd_momentum", "sgd")


def _why_not_redundancy(setup: TrainingSetup) -> str:
    """ZeroRedundancyOptimizer steps whole tensors on the rank that owns them, with one class of optimizer for all."""
    recipe = setup.recipe
    if recipe.optimizer not in _REDUNDANCY_OPTIMIZERS:
        return f"ZeroRedundancyOptimizer deals tensors out to {', '.join(_REDUNDANCY_OPTIMIZERS)}, not to {recipe.optimizer}"
    return "ZeroRedundancyOptimizer steps after backward only" if recipe.optimizer_in_backward else ""


def why_not_mesh(strategy: Strategy, free: Degrees) -> str:
    """Mesh axes a strategy cannot have beside each other.

    Args:
        strategy: the row of the table.
        free: degrees the search chose; 1 where the request pins them, since a pin is judged as it is.

    Source: facts on DeepSpeed 0.19.8: pipe/engine.py, AutoEP's checks, UlyssesSPAttentionHF; torch 2.13.
    """
    tp, pp = free.tensor_parallel > 1, free.pipeline_parallel > 1
    sp, ep = free.sequence_parallel > 1, free.expert_parallel > 1
    if strategy.framework == "ddp":
        return "DDP splits nothing but the batch" if tp or pp or sp or ep else ""
    if sp and strategy.framework != "deepspeed":
        return "sequence parallelism (Ulysses) is DeepSpeed's"
    if pp and strategy.framework == "deepspeed":
        if reason := why_not_stage(strategy):
            return reason
        if sp:
            return "DeepSpeed's pipeline engine has no sequence parallelism"
    if ep and strategy.framework == "deepspeed" and (tp or pp or sp):
        return "DeepSpeed's expert parallelism takes no tensor, pipeline or sequence axis beside it"
    return ""


def why_not_stage(strategy: Strategy) -> str:
    """A strategy that DeepSpeed's pipeline engine asserts against, whatever the degree."""
    if strategy.framework == "deepspeed" and strategy.name not in STAGES_OF_PIPELINE:
        return "DeepSpeed's pipeline engine refuses ZeRO-2 and ZeRO-3"
    return ""


def why_not_pipeline_offload(strategy: Strategy, free: Degrees, pair: tuple[int, int]) -> str:
    """Offload under a pipeline: its 16-bit optimizer keeps the states on the GPU."""
    if free.pipeline_parallel > 1 and strategy.framework == "deepspeed" and pair != (0, 0):
        return "DeepSpeed's pipeline engine keeps optimizer states on the GPU"
    return ""


def why_not_axis(setup: TrainingSetup, axis: str) -> str:
    """Models and recipes for which an axis is not searched; a pin is still judged."""
    model, recipe = setup.model, setup.recipe
    if axis == "expert_parallel":
        return "" if is_moe(model) and not recipe.adapter else "expert parallelism is for mixtures trained in full"
    if model.kind != "decoder":
        return f"{axis.replace('_parallel', '')} parallelism is searched for decoders only"
    mixers = [s.block.attention for s in model.stacks if s.part == "main"]
    if axis != "pipeline_parallel" and any(a is None or a.kind != "grouped" for a in mixers):
        return "tensor and sequence parallelism split attention heads, which not all blocks have"
    if axis == "tensor_parallel" and is_moe(model):
        return "tensor parallelism of fused experts is not set up by transformers"
    if axis != "sequence_parallel" and recipe.adapter:
        return "tensor and pipeline parallelism are searched for models trained in full"
    return ""


def why_not_degree(setup: TrainingSetup, axis: str, degree: int, framework: str = "deepspeed") -> str:
    """A degree that the model or the batch cannot be cut into, with the arithmetic.

    Source: DeepSpeed 0.19.8 ``UlyssesSPAttentionHF`` (heads, and key/value heads or whole copies of them); ``module_inject``'s AutoTP
    and torch's ColwiseParallel, whose columns must be whole heads; the pipeline engine; AutoEP.
    """
    if degree == 1:
        return ""
    model = setup.model
    if axis == "pipeline_parallel":
        return f"pipeline_parallel {degree} exceeds the {model.num_layers} layers" if degree > model.num_layers else ""
    if axis == "expert_parallel":
        experts = [s.block.moe.num_experts for s in model.stacks if s.block.moe]
        if not experts:
            return f"expert_parallel {degree} has nothing to spread: the model has no experts"
        odd = next((n for n in experts if n % degree), None)
        return f"expert_parallel {degree} does not divide num_experts {odd}: {_arithmetic(odd, degree)}" if odd else ""
    if axis == "sequence_parallel":
        return _why_not_sequence(setup, degree, framework)
    for heads, kv_heads in _heads(setup):
        for name, number in (("num_heads", heads), ("num_kv_heads", kv_heads)):
            if number % degree:
                return f"tensor_parallel {degree} does not divide {name} {number}: {_arithmetic(number, degree)}"
    return ""


def why_not_companion(setup: TrainingSetup, axis: str, degree: int, framework: str = "deepspeed") -> str:
    """A degree that one of the other models on the same GPUs cannot be cut into; those without experts go along whole."""
    for companion in setup.companions:
        own = setup_of(setup, companion)
        if companion.replicated or (axis == "expert_parallel" and not is_moe(own.model)):
            continue
        if reason := why_not_degree(own, axis, degree, framework):
            return f"{companion.role}: {reason}"
    return ""


def _why_not_sequence(setup: TrainingSetup, degree: int, framework: str) -> str:
    seq_len = setup.recipe.seq_len
    if seq_len % degree:
        return f"sequence_parallel {degree} does not divide seq_len {seq_len}: {_arithmetic(seq_len, degree)}"
    if framework != "deepspeed":
        return ""  # context parallelism passes keys and values round: it cuts no heads
    for heads, kv_heads in _heads(setup):
        if heads % degree:
            return f"sequence_parallel {degree} does not divide num_heads {heads}: {_arithmetic(heads, degree)}"
        if kv_heads % degree and degree % kv_heads:
            return (
                f"sequence_parallel {degree} neither divides num_kv_heads {kv_heads} nor is a multiple of it, so that ranks could hold "
                f"copies: {_arithmetic(kv_heads, degree)}. Uneven key/value heads are taken by DeepSpeed's DistributedAttention only, "
                "from a model written for it, and these figures split them evenly"
            )
    return ""


def _arithmetic(number: int, degree: int) -> str:
    """Why a division does not come out.

    Example:
        >>> _arithmetic(8191, 2), _arithmetic(8, 16)
        ('8191 = 2 × 4095 + 1', '8 is less than 16')
    """
    if number < degree:
        return f"{number} is less than {degree}"
    return f"{number} = {degree} × {number // degree} + {number % degree}"


def _heads(setup: TrainingSetup) -> Iterator[tuple[int, int]]:
    """Query and key/value heads of every kind of block that is split; the width where a block has no attention."""
    found = [s.block.attention for s in setup.model.stacks if s.part == "main"]
    yield from dict.fromkeys((a.num_heads, a.num_kv_heads) for a in found if a)
    if not any(found):
        yield setup.model.hidden_size, setup.model.hidden_size


def why_not_group(strategy: Strategy, group: int, ranks: int, degrees: Degrees, gpus_per_node: int) -> str:
    """A shard group the strategy does not have, with the arithmetic; a group of all ranks is no group.

    Args:
        group: ranks asked to share one copy.
        ranks: those that states are sharded over, of all nodes.

    Source: DeepSpeed 0.19.8 ``utils/groups.py``, ``_create_zero_param_parallel_group``: hpZ's groups are runs of the job's ranks.
    """
    if group == ranks or (strategy.states == "none" and group == 1):
        return ""
    if strategy.states != "group" and strategy.name != "zero3":
        return f"{strategy.label} has no shard group of {group}: only HSDP and ZeRO++ hpZ divide the {ranks} ranks into groups"
    if ranks % group:
        return f"shard_group_size {group} does not divide the {ranks} ranks: {_arithmetic(ranks, group)}"
    if strategy.states == "group" or group == 1:
        return ""
    if ranks <= gpus_per_node:
        return f"hpZ keeps its copy in each node, and the {ranks} ranks are one node: groups of {group} would cost memory and save nothing"
    if degrees.expert_parallel > 1:
        return "DeepSpeed's expert parallelism refuses hpZ"
    if degrees.tensor_parallel > 1:
        return "hpZ's groups are runs of the job's ranks, which tensor parallelism gives different parts of each matrix"
    if group != gpus_per_node:
        return f"hpZ's group is the {gpus_per_node} GPUs of a node, whose links it stays on, not {group} ranks"
    return ""


def quantises(setup: TrainingSetup, strategy: Strategy) -> bool:
    """Whether ZeRO++ can quantise what this strategy moves: stage 3 in 16 bits, tensors of whole groups of eight."""
    sixteen = setup.recipe.precision in ("bf16", "fp16")
    return strategy.name == "zero3" and sixteen and setup.recipe.adapter is None and setup.model.hidden_size % 8 == 0
