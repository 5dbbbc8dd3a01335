"""Reasoned rejections: what no framework does together. Each rule returns the reason, or an empty string."""

from __future__ import annotations

from app.domain.model.parameters import is_moe
from app.domain.parallel.mesh import Degrees
from app.domain.parallel.strategy import Strategy
from app.domain.setup import TrainingSetup

STAGES_OF_PIPELINE = ("ddp", "zero1")
"""Strategies DeepSpeed's pipeline engine takes; it refuses stages 2 and 3 (runtime/pipe/engine.py)."""


def why_not_offload(strategy: Strategy, pair: tuple[int, int]) -> str:
    """Offload the framework does not do, or parses and ignores."""
    if pair == (0, 0):
        return ""
    if strategy.states == "none" or strategy.framework == "ddp":
        return f"{strategy.label} has no offload"
    if strategy.framework == "fsdp2":
        return "" if pair == (1, 1) else "FSDP2 offloads parameters, gradients and optimizer together, to host memory only"
    if strategy.parameters == "none":
        return "" if pair == (1, 0) else "DeepSpeed offloads parameters, or anything to NVMe, only at stage 3"
    return ""


def why_not_precision(setup: TrainingSetup, strategy: Strategy, offload: tuple[int, int]) -> str:
    """Pure low precision that DeepSpeed does not offer in every combination."""
    recipe = setup.recipe
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
        if strategy.name not in STAGES_OF_PIPELINE:
            return "DeepSpeed's pipeline engine refuses ZeRO-2 and ZeRO-3"
        if sp:
            return "DeepSpeed's pipeline engine has no sequence parallelism"
    if ep and strategy.framework == "deepspeed" and (tp or pp or sp):
        return "DeepSpeed's expert parallelism takes no tensor, pipeline or sequence axis beside it"
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


def quantises(setup: TrainingSetup, strategy: Strategy) -> bool:
    """Whether ZeRO++ can quantise what this strategy moves: stage 3 in 16 bits, tensors of whole groups of eight."""
    sixteen = setup.recipe.precision in ("bf16", "fp16")
    return strategy.name == "zero3" and sixteen and setup.recipe.adapter is None and setup.model.hidden_size % 8 == 0
