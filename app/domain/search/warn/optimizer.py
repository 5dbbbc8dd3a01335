"""What is said about the optimizer: where it runs, when it steps, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from app.domain.plan import Candidate, PlanWarning, Settings
from app.domain.recipe.optimizer import OPTIMIZERS
from app.domain.recipe.precision import stored_dtypes
from app.domain.recipe.recipe import Recipe
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.base import warning
from app.domain.units import format_gib, format_number

_CPU_KERNELS = ("adamw", "lion")
_OWN_STATES = {"adamw_8bit": "int8", "paged_adamw_8bit": "int8", "adafactor": "fp32"}


def optimizer_warnings(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """Steps inside backward, optimizers off their device, states in a dtype they are not kept in."""
    recipe, settings = evaluation.setup.recipe, candidate.settings
    if recipe.optimizer_in_backward:
        yield from _step_in_backward(settings)
    yield from _placement(recipe, settings)
    yield from _paging(evaluation, settings)
    yield from _state_dtype(recipe, settings)
    yield from _implementation(recipe, settings)
    yield from _superoffload(evaluation, candidate)
    if settings.optimizer == "muon" and settings.strategy == "zero3":
        yield warning(
            "muon_without_reduce_scatter",
            "DeepSpeed refuses Muon at stage 3 together with reduce_scatter, for it orthogonalises whole matrices: the file sets it false, "
            "and gradients travel by all-reduce, twice the bytes of a reduce-scatter.",
            "training.optimizer",
            "Use strategy zero2 for Muon where it fits, or adamw.",
            "info",
        )


def _step_in_backward(settings: Settings) -> Iterator[PlanWarning]:
    field = "training.optimizer_in_backward"
    if settings.framework == "deepspeed":
        yield warning(
            "step_in_backward_ignored",
            "DeepSpeed steps after backward whatever is asked: its engine owns gradients and optimizer, and all gradients live at once.",
            field,
            "Use FSDP2, or one GPU without DeepSpeed; this answer counts the gradients.",
        )
        return
    if settings.framework == "ddp" and settings.world_size > 1:
        yield warning(
            "step_in_backward_ddp",
            "DDP reduces a gradient after its hooks ran: every rank would step on its own gradient, and the copies drift apart.",
            field,
            "Use FSDP2, whose hooks run on reduced gradients, or drop optimizer_in_backward.",
            "error",
        )
    if settings.grad_accum > 1:
        yield warning(
            "step_in_backward_accumulates",
            f"A step inside backward uses each gradient up: {settings.grad_accum} micro-steps would be {settings.grad_accum} optimizer "
            "steps, and the script refuses to start.",
            field,
            "Set grad_accum 1 and a larger micro_batch, or drop optimizer_in_backward.",
            "error",
        )


def _placement(recipe: Recipe, settings: Settings) -> Iterator[PlanWarning]:
    """Optimizers whose kernels are not where the states are."""
    name = recipe.optimizer
    if settings.offload_optimizer == "none":
        return
    if "8bit" in name:
        yield warning(
            "eight_bit_offloaded",
            f"{name} keeps and steps its states with GPU kernels. Offloaded, {_offloads_how(settings)}, and little is gained: "
            "the host holds gradients and weights of full width beside them.",
            "training.optimizer",
            "Use adamw with the offload, or keep the 8-bit states on the GPU (2 bytes a parameter over the ranks) without it.",
        )
    elif settings.framework == "deepspeed" and name not in _CPU_KERNELS:
        yield warning(
            "no_cpu_kernel",
            f"DeepSpeed steps only AdamW and Lion with its own CPU kernels. It refuses {name} with offload unless "
            "zero_force_ds_cpu_optimizer is false, as the file sets it, and then steps it with torch's slower loop.",
            "training.optimizer",
            "Use adamw or lion with optimizer offload.",
        )


def _offloads_how(settings: Settings) -> str:
    if settings.framework == "deepspeed":
        return "DeepSpeed accepts it only with zero_force_ds_cpu_optimizer false and then calls it on CPU tensors"
    return "FSDP2 runs the optimizer on CPU shards"


def _paging(evaluation: Evaluation, settings: Settings) -> Iterator[PlanWarning]:
    if not OPTIMIZERS[settings.optimizer].paged or settings.framework != "fsdp2":
        return
    numbers = evaluation.numbers
    kept = numbers.trainable * numbers.states_per_param * (OPTIMIZERS[settings.optimizer].fixed_bytes_per_element or 1.0)
    yield warning(
        "paged_not_paged",
        "FSDP2's weights are DTensors, which bitsandbytes' paged optimizer does not know. The script uses torchao's 8-bit AdamW, which "
        f"has no paged form: its states, {format_gib(kept / settings.shard_group_size)}, stay on each GPU.",
        "training.optimizer",
        "Use adamw_8bit, which counts them there, or one GPU, or DeepSpeed, for real paging.",
    )


def _state_dtype(recipe: Recipe, settings: Settings) -> Iterator[PlanWarning]:
    asked = recipe.optimizer_state_dtype
    own = _OWN_STATES.get(recipe.optimizer) or stored_dtypes(settings.framework, replace(recipe, optimizer_state_dtype=None)).state
    if asked is None or asked == own or recipe.optimizer == "sgd":
        return
    fix = {
        "int8": "Use optimizer adamw_8bit for 8-bit states.",
        "bf16": "Set master_weights false for 16-bit states throughout, or bring an optimizer that keeps bf16 moments.",
        "fp32": "Leave optimizer_state_dtype open, or use adamw with master_weights for fp32 moments.",
    }
    yield warning(
        "state_dtype_unsupported",
        f"{recipe.optimizer} under {settings.framework} keeps its states in {own} with these settings; the figures count {asked} as asked, "
        f"but the files written here keep {own}.",
        "training.optimizer_state_dtype",
        fix[asked],
    )


def _implementation(recipe: Recipe, settings: Settings) -> Iterator[PlanWarning]:
    asked, offloaded = recipe.optimizer_implementation, settings.offload_optimizer != "none"
    if asked is None:
        return
    why = ""
    if asked == "deepspeed_fused" and settings.framework != "deepspeed":
        why = f"that kernel is DeepSpeed's; {settings.framework} steps with torch's fused one"
    elif asked == "cpu" and not offloaded:
        why = "the states are on the GPU, and so is the step"
    elif asked != "cpu" and offloaded and settings.framework == "deepspeed":
        why = "with optimizer offload DeepSpeed steps with its CPU kernel"
    if why:
        yield warning(
            "implementation_ignored", f"optimizer_implementation {asked} changes nothing here: {why}.", "training.optimizer_implementation",
            "Leave it open.", "info",
        )  # fmt: skip


def _superoffload(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """Stage 3 with a coherent link could step on the host beside backward, at the price of clipping."""
    settings = candidate.settings
    if not (settings.strategy == "zero3" and settings.offload_optimizer == "cpu" and evaluation.setup.pool.node.gpu.coherent):
        return
    update = sum(term.value for term in candidate.time.terms if term.name == "Adam on the host")
    yield warning(
        "superoffload_possible",
        f"Adam on the host takes {format_number(update)} s of each step of {format_number(candidate.time.step_s)} s here, after "
        "backward. On this GPU's coherent link DeepSpeed's SuperOffload runs it beside backward, but only without gradient clipping.",
        "constraints.offload_optimizer",
        'If training is stable without clipping, add "super_offload": true to offload_optimizer and set gradient_clipping 0.',
        "info",
    )
