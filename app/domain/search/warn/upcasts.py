"""Where a library changes a dtype that the plan counts, unless it is told otherwise.

Source: accelerate 1.15 ``utils/fsdp_utils.py`` and ``accelerator.py`` (mixed precision stores trained weights in fp32, and reduces in
the compute dtype); PEFT ``get_peft_model`` (``autocast_adapter_dtype``).
"""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.plan import Candidate, PlanWarning
from app.domain.recipe.precision import dtype_bytes
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.base import warning
from app.domain.units import format_gib


def upcast_warnings(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """Weights, adapters and reductions in another dtype than the settings say."""
    recipe, settings = evaluation.setup.recipe, candidate.settings
    stored, compute = settings.param_dtype, "bf16" if settings.precision == "fp8" else settings.precision
    share = evaluation.numbers.trainable / max(1, settings.shard_group_size * settings.tensor_parallel)
    more = share * 2 * (dtype_bytes("fp32") - dtype_bytes(stored))
    if settings.framework != "deepspeed" and recipe.adapter is None and stored == compute != "fp32":
        yield warning(
            "mixed_precision_upcasts",
            f"The plan stores trained weights in {stored}. accelerate and the Trainer keep them in fp32 as soon as mixed_precision or "
            f"{compute} is set: {format_gib(more)} more on each GPU for weights and gradients, and moments as wide.",
            "training.master_weights",
            "Leave mixed_precision at no, as accelerate.yaml has it, and load the model in that dtype.",
            "info",
        )
    if recipe.adapter and stored != "fp32":
        yield warning(
            "adapter_upcast",
            f"The plan trains the adapter in {stored}. PEFT makes it fp32 unless told otherwise, {format_gib(more)} more on each GPU with "
            "its gradients.",
            "training.adapter.dtype",
            "Pass autocast_adapter_dtype=False to get_peft_model, as the training scripts do.",
            "info",
        )
    if settings.framework == "fsdp2" and settings.reduce_dtype == "fp32" and compute != "fp32":
        yield warning(
            "accelerate_reduces_in_16_bit",
            f"fsdp2_train.py reduces gradients in fp32, as counted. accelerate reduces them in {compute} and rounds the loss it returns to "
            f"{compute}; its file has no key for that.",
            "training.grad_dtype",
            "Use the script, or pass a MixedPrecisionPolicy with reduce_dtype torch.float32 to accelerate's FSDP plugin.",
            "info",
        )
