"""Habits of an implementation that change how many copies of a tensor live, read from the config and the family."""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Numerics
from app.ingest.hf_config.fields import Fields

# Activations that transformers writes out in element-wise operations instead of calling one kernel.
_SPELLED = frozenset({"gelu_new", "gelu_fast", "gelu_python", "gelu_accurate", "quick_gelu", "relu2", "laplace"})
_ACTIVATION_KEYS = ("hidden_act", "activation_function", "hidden_activation", "mlp_hidden_act", "activation")


def numerics_of(f: Fields, family: str, model: Architecture) -> Numerics:
    """What the library's code for this family does beside its tensors."""
    named = next((text for key in _ACTIVATION_KEYS if (text := f.text(key))), "")
    capped = family.startswith("gemma2")
    return Numerics(
        spelled_activation=named in _SPELLED,
        wide_norms="gemma" in family,
        softcapped_scores=capped and not f.nulled("attn_logit_softcapping"),
        softcapped_logits=capped and not f.nulled("final_logit_softcapping"),
        upcasts_logits=model.kind in ("decoder", "multimodal", "ssm"),
    )
