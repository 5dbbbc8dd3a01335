"""Which adapter reads which model_type, and the way from a section of a config to its architecture."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from app.domain.errors import FieldError, InvalidRequestError, UnsupportedModelError
from app.domain.model.architecture import Architecture
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.outline import class_name_of

Adapter = Callable[[Fields], Architecture]

FAMILIES: dict[str, Adapter] = {}
CLASSES: dict[str, str] = {}
# model_types of sections nested in a config, whose class defaults stand in for what is not stored
SECTIONS: set[str] = set()

_ALTERNATIVE = "give model.shape or model.params instead"
_MAX_NAME = 80


def family(*model_types: str, classes: tuple[str, ...] = ()) -> Callable[[Adapter], Adapter]:
    """Register an adapter under its model_types; ``classes`` are class names that stand for the first of them."""

    def register(adapter: Adapter) -> Adapter:
        for model_type in model_types:
            FAMILIES[model_type] = adapter
        for name in classes:
            CLASSES[name] = model_types[0]
        return adapter

    return register


def resolve(f: Fields) -> str:
    """The registered family of a config: its model_type, else its diffusers class, else architectures[0].

    Raises:
        UnsupportedModelError: the config names no family, or one that is not registered.
    """
    model_type, diffusers_class, class_name = f.text("model_type"), f.text("_class_name"), class_name_of(f)
    for candidate in (model_type, diffusers_class):
        if candidate in FAMILIES:
            return candidate
    for candidate in (diffusers_class, class_name):
        if candidate in CLASSES:
            return CLASSES[candidate]
    by_prefix = _by_prefix(class_name)
    if by_prefix:
        return by_prefix
    raise _unknown(f, model_type or diffusers_class, class_name)


def read(f: Fields) -> Architecture:
    """The architecture of a section whose ``model_type`` is registered."""
    adapter = FAMILIES.get(f.model_type)
    if adapter is None:
        raise _unknown(f, f.model_type, "")
    return adapter(f)


def _by_prefix(class_name: str) -> str:
    """The family of another head on a known trunk: ``LlamaForSequenceClassification`` is read as llama."""
    for suffix in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model"):
        stem = class_name.removesuffix(suffix)
        if stem != class_name:
            return CLASSES.get(f"{stem}ForCausalLM", CLASSES.get(f"{stem}ForMaskedLM", ""))
    return ""


def _unknown(f: Fields, model_type: str, class_name: str) -> InvalidRequestError:
    if not model_type and not class_name:
        msg = "the config has no model_type (and no architectures or _class_name that says it)"
        hint = f"paste the whole config.json, or {_ALTERNATIVE}"
        return UnsupportedModelError(f"{msg}; {hint}", (FieldError((*f.loc, "model_type"), msg, hint),))
    name = (model_type or class_name)[:_MAX_NAME]
    near = difflib.get_close_matches(name, [*FAMILIES, *CLASSES], n=3, cutoff=0.5)
    closest = f"closest supported: {', '.join(near)}" if near else f"{len(FAMILIES)} families are supported"
    msg = f"model_type {name!r} is not one whose parameters can be counted exactly ({closest})"
    return UnsupportedModelError(f"{msg}; {_ALTERNATIVE}", (FieldError((*f.loc, "model_type"), msg, _ALTERNATIVE),))
