"""What is said about dtypes: of weights, gradients and their accumulation."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.plan import Candidate, PlanWarning, Settings
from app.domain.recipe.recipe import Recipe
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.base import warning


def numerics_warnings(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """Precision, gradients and batch."""
    recipe, settings = evaluation.setup.recipe, candidate.settings
    if recipe.precision == "fp8":
        yield warning(
            "fp8_needs_library",
            "fp8 is of matrix products only and comes from a library: the training scripts convert linear layers with torchao. "
            "ds_config.json and accelerate.yaml have no key for it, and alone train in bf16.",
            "training.precision",
            "Install torchao, and in a trainer of your own call convert_to_float8_training as the scripts do; the figures assume it.",
            "info",
        )
    yield from _units(evaluation)
    yield from _accumulation(recipe, settings)
    yield from _gradients(recipe, settings)
    if recipe.adapter and recipe.adapter.kind == "qlora" and recipe.master_weights:
        yield warning(
            "no_master_of_quantised",
            "A quantised base has no fp32 master: only the adapter's weights are kept in fp32.",
            "training.master_weights",
            "Nothing to change; the answer counts it that way.",
            "info",
        )
    if recipe.global_batch is None and recipe.micro_batch is None:
        yield warning(
            "global_batch_chosen",
            f"No global_batch was given; this plan steps on {settings.global_batch:,} sequences, and the learning rate that suits "
            "a run depends on that number.",
            "training.global_batch",
            "Give global_batch to keep it.",
            "info",
        )


def _units(evaluation: Evaluation) -> Iterator[PlanWarning]:
    """A compute dtype that the device has no matrix units for."""
    gpu, precision = evaluation.setup.pool.node.gpu, evaluation.setup.recipe.precision
    if gpu.peak_flops_per_s.get(precision):
        return
    native = "fp16" if gpu.peak_flops_per_s.get("fp16") and precision != "fp8" else "bf16" if gpu.peak_flops_per_s.get("bf16") else "fp32"
    yield warning(
        "precision_not_native",
        f"{gpu.name} has no matrix units for {precision}: what is computed in it is emulated, slowly, or refused.",
        "training.precision",
        f"Use {native}, which this GPU computes natively{', with loss scaling' * (native == 'fp16')}.",
    )


def _accumulation(recipe: Recipe, settings: Settings) -> Iterator[PlanWarning]:
    """DeepSpeed's accumulation dtype, which not every stage takes."""
    if settings.framework != "deepspeed":
        return
    if settings.grad_accum > 1 and settings.grad_dtype in ("bf16", "fp16"):
        yield warning(
            "accumulates_in_16_bit",
            f"DeepSpeed accumulates {settings.grad_accum} micro-steps in {settings.grad_dtype} unless told otherwise.",
            "training.grad_dtype",
            "Set grad_dtype fp32; stages 2 and 3 honour it.",
            "info",
        )
    if recipe.grad_dtype != "fp32" or settings.precision == "fp32" or not recipe.master_weights:
        return
    if settings.strategy == "ddp":
        yield warning(
            "stage0_accumulation",
            "DeepSpeed refuses another accumulation dtype at stage 0; the file leaves it out and accumulates in the compute dtype.",
            "training.grad_dtype",
            "Use ZeRO-2 or ZeRO-3 for fp32 accumulation.",
        )
    elif settings.strategy == "zero1":
        yield _zero1_accumulation(settings)


def _zero1_accumulation(settings: Settings) -> PlanWarning:
    if settings.precision == "fp16" or settings.offload_optimizer == "cpu":
        what = "fp32 accumulation at stage 1 keeps whole fp32 gradients, 4 bytes a parameter, beside the 16-bit ones on every GPU."
    else:
        what = (
            "fp32 accumulation at stage 1 switches DeepSpeed to BF16_Optimizer: whole fp32 gradients stay on every GPU, "
            "and a 16-bit copy of all of them is made to send. It is counted so."
        )
    return warning("zero1_fp32_accumulation", what, "training.grad_dtype", "Use ZeRO-2, which keeps only its part of the fp32 gradients.")


def _gradients(recipe: Recipe, settings: Settings) -> Iterator[PlanWarning]:
    """A gradient dtype that the framework takes from elsewhere, or that overflows."""
    asked, real = recipe.grad_dtype, _real_grad_dtype(recipe, settings)
    if asked is None:
        return
    if real is not None and asked != real:
        yield warning(
            "grad_dtype_ignored",
            f"{_FRAMEWORKS[settings.framework]} keeps gradients in the dtype of the weights it trains, here {real}; grad_dtype {asked} "
            "changes nothing.",
            "training.grad_dtype",
            f"Leave grad_dtype open, or change what it follows: master_weights {str(recipe.master_weights).lower()}, "
            f"precision {recipe.precision}.",
        )
    elif settings.framework == "fsdp2" and asked != settings.grad_dtype:
        yield warning(
            "grad_dtype_on_the_wire",
            f"FSDP2 reduces gradients in {asked}, then keeps and accumulates them in {settings.grad_dtype}, the dtype of its shards.",
            "training.grad_dtype",
            "Nothing to change; the answer counts it that way.",
            "info",
        )
    if asked == "fp16" and recipe.precision != "fp16" and real in (None, "fp16"):
        yield warning(
            "grad_dtype_overflows",
            f"grad_dtype fp16 ends at 65,504, and a {recipe.precision} run does not scale its loss: large gradients become infinite.",
            "training.grad_dtype",
            "Use bf16 or fp32, or train with precision fp16, which scales the loss.",
        )


_FRAMEWORKS = {"deepspeed": "DeepSpeed", "fsdp2": "FSDP2", "ddp": "DDP"}


def _real_grad_dtype(recipe: Recipe, settings: Settings) -> str | None:
    """Where a framework takes no gradient dtype, the one it uses; None where it takes one.

    DDP reduces buckets of the weights' dtype; FSDP2's policy is written for 16-bit compute only; DeepSpeed accumulates in the
    master's dtype where there is no fp32 master, and in fp32 where everything is.
    """
    if settings.framework == "ddp" or (settings.framework == "fsdp2" and recipe.precision == "fp32"):
        return settings.param_dtype
    if settings.framework == "deepspeed" and (recipe.precision == "fp32" or not recipe.master_weights):
        return "fp32" if recipe.precision == "fp32" else settings.param_dtype
    return None
