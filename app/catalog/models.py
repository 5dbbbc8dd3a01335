"""Model presets: config.json of known models with their exact parameter counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.catalog.data import Index, document
from app.domain.errors import Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """One known model.

    Attributes:
        key, name, hf_id: what it goes by; its repository, None where it has none.
        config: its config.json.
        total_params: distinct parameters, tied weights counted once.
        active_params: those one token uses; equal to the total where dense.
        source: where the configuration comes from.
        notes: caveats.
    """

    key: str
    name: str
    hf_id: str | None
    config: Mapping[str, Any]
    total_params: int
    active_params: int | None
    source: str
    notes: str


@cache
def load_models() -> tuple[ModelPreset, ...]:
    """Every model of the catalogue, in its order."""
    return read_models(document("models"))


def find_model(name: str, loc: Loc = ("model", "preset")) -> ModelPreset:
    """The model of that key, name or repository id.

    Raises:
        InvalidRequestError: unknown; at ``loc``, with the nearest names.
    """
    return _index().find(name, loc)


def read_models(data: Mapping[str, Any]) -> tuple[ModelPreset, ...]:
    """Presets of a document of the shape of models.json."""
    fields = ModelPreset.__dataclass_fields__
    return tuple(ModelPreset(**{name: entry[name] for name in fields}) for entry in data["models"])


def index_models(models: tuple[ModelPreset, ...]) -> Index[ModelPreset]:
    """Find models by key, name or repository id."""
    return Index("model", models, key_of=lambda model: model.key, names_of=_names)


def _names(model: ModelPreset) -> tuple[str, ...]:
    names = (model.key, model.name)
    return names if model.hf_id is None else (*names, model.hf_id)


@cache
def _index() -> Index[ModelPreset]:
    return index_models(load_models())
