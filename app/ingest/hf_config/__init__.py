"""From a config.json to tensors: one small adapter for each family, and one function that picks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.domain.errors import InvalidRequestError, UnsupportedModelError
from app.domain.model.architecture import Architecture
from app.ingest.hf_config import (
    alibi,
    audio,
    bert,
    blip2,
    contrastive,
    dbrx,
    delta,
    dense,
    dense_variants,
    gemma_late,
    gpt,
    hybrid,
    idefics2,
    image_dit,
    joint_dit,
    latent,
    llama4,
    mixture,
    mllama,
    modern_encoder,
    opt,
    qwen_vl,
    recurrent,
    remote,
    seq2seq,
    ssm,
    switch,
    t5,
    video_dit,
    vit,
    vlm,
)
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.numerics import numerics_of
from app.ingest.hf_config.registry import FAMILIES, read, resolve
from app.ingest.hf_config.routed import with_moe_classes

_ADAPTERS = (
    alibi,
    audio,
    bert,
    blip2,
    contrastive,
    dbrx,
    delta,
    dense,
    dense_variants,
    gemma_late,
    gpt,
    hybrid,
    idefics2,
    image_dit,
    joint_dit,
    latent,
    llama4,
    mixture,
    mllama,
    modern_encoder,
    opt,
    qwen_vl,
    recurrent,
    remote,
    seq2seq,
    ssm,
    switch,
    t5,
    video_dit,
    vit,
    vlm,
)  # imported for their registrations

__all__ = ["architecture_from_config", "supported_families"]


def supported_families() -> tuple[str, ...]:
    """Every model_type or diffusers class that can be counted, sorted."""
    return tuple(sorted(FAMILIES))


def architecture_from_config(
    config: Mapping[str, Any], *, name: str | None = None, loc: tuple[str | int, ...] = ("model", "hf_config")
) -> Architecture:
    """The architecture a config.json (of transformers or diffusers) describes, every tensor listed.

    Args:
        config: the parsed JSON object.
        name: what to call the model; else the config's own ``_name_or_path``, else its family.
        loc: path of the config in the request, for error messages.

    Raises:
        UnsupportedModelError: no family named, an unknown one, or sizes that it requires are missing.
        InvalidRequestError: a value of the wrong type, out of range or contradicting another.
    """
    if not isinstance(config, Mapping):
        raise InvalidRequestError.at(*loc, msg=f"a config.json is an object, not a {type(config).__name__}")
    root = Fields(config, loc=loc)
    family = resolve(root)
    fields = root.retyped(family)
    try:
        found = read(fields)
    except (InvalidRequestError, ArithmeticError):
        if not fields.missing:
            raise
        found = None
    if fields.missing or found is None:
        raise _missing(fields, family)
    label = name or root.text("_name_or_path") or family
    return with_moe_classes(replace(found, name=label[:200], numerics=numerics_of(fields, family, found)))


def _missing(fields: Fields, family: str) -> UnsupportedModelError:
    unique = tuple(dict.fromkeys(fields.missing))
    listed = "; ".join(error.msg for error in unique)
    hint = "give the whole config.json, or model.shape or model.params instead"
    return UnsupportedModelError(f"the {family} config lacks what its parameter count needs: {listed}; {hint}", unique)
