"""From a request to a question the domain can answer: model, recipe, pools and pins, with everything looked up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from app.catalog.fitted import fitted_rates
from app.catalog.keys import versions_for
from app.catalog.models import find_model
from app.domain.errors import InvalidRequestError
from app.domain.model.architecture import Architecture
from app.domain.model.infer import Shape, architecture_from_params, architecture_from_shape, architecture_without_head_dim
from app.domain.model.parameters import total_params
from app.domain.recipe.adapter import Adapter
from app.domain.recipe.companion import Companion
from app.domain.recipe.recipe import Recipe
from app.domain.search.constraints import Constraints
from app.domain.search.planner import Question
from app.domain.setup import TrainingSetup
from app.ingest.hf_config import architecture_from_config
from app.ingest.hub import Hub
from app.services.bounds import check_size
from app.services.cluster import resolve_pools
from app.services.companions import check_companions, companion_of, located
from app.services.request import AdapterIn, CompanionIn, ModelIn, PlanRequest, ShapeIn, TrainingIn, tokens_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model with what emitted scripts need to build it.

    Attributes:
        commit: of the repository, where it was fetched from a hub.
    """

    architecture: Architecture
    hf_id: str | None = None
    hf_config: Mapping[str, Any] | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request with everything looked up."""

    question: Question
    model: ResolvedModel
    gpu_name: str
    assumed: tuple[str, ...]


def resolve(request: PlanRequest, hub: Hub | None = None) -> Resolved:
    """Look up presets and devices and bundle the question.

    Args:
        request: what was asked.
        hub: where models named by ``hf_id`` are fetched from; None where that is switched off.

    Raises:
        InvalidRequestError: something named is unknown or contradicts the rest.
        UnavailableError: the hub does not answer.
    """
    model = resolve_model(request.model, hub)
    cluster = resolve_pools(request.cluster.pools)
    setup = TrainingSetup(
        model=model.architecture,
        recipe=recipe_of(request.training),
        pool=cluster.pools[0],
        rates=fitted_rates(),
        headroom_frac=request.headroom_frac,
    )
    check_size(setup.model, setup.recipe, cluster.pools)
    _check_training(setup)
    beside = tuple(_companion(number, given, hub) for number, given in enumerate(request.companions))
    setup = replace(setup, companions=beside)
    check_companions(setup, cluster.pools)
    versions = versions_for({"deepspeed": request.deepspeed_version, "torch": request.torch_version})
    constraints = Constraints(**request.constraints.model_dump(), versions=versions)
    question = Question(setup=setup, pools=cluster.pools, constraints=constraints, objective=request.objective)
    return Resolved(question=question, model=model, gpu_name=cluster.gpu_name, assumed=cluster.assumed)


def _companion(number: int, given: CompanionIn, hub: Hub | None) -> Companion:
    with located("companions", number):
        return companion_of(given, resolve_model(given.model, hub).architecture)


def resolve_model(given: ModelIn, hub: Hub | None = None) -> ResolvedModel:
    """The architecture of whichever way the model was named."""
    if given.preset is not None:
        preset = find_model(given.preset, ("model", "preset"))
        return ResolvedModel(architecture=_preset_architecture(preset.key), hf_id=preset.hf_id, hf_config=preset.config)
    if given.hf_config is not None:
        architecture = _of_config(json.dumps(given.hf_config), None, "hf_config")
        return ResolvedModel(architecture=architecture, hf_config=given.hf_config)
    if given.shape is not None:
        return ResolvedModel(architecture=_from_shape(given.shape))
    if given.params is not None:
        return ResolvedModel(architecture=_of_params(given.params))
    if given.hf_id is not None and hub is not None:
        found = hub.model(given.hf_id, given.revision)
        architecture = _of_config(json.dumps(found.config), given.hf_id, "hf_id")
        return ResolvedModel(architecture=architecture, hf_id=given.hf_id, hf_config=found.config, commit=found.commit)
    raise InvalidRequestError.at(
        "model",
        "hf_id",
        msg="this server does not fetch models from a hub",
        hint="paste the model's config.json as model.hf_config, or use model.preset",
    )


def local_model(given: ModelIn, hub: Hub | None) -> ModelIn:
    """The model as its config.json where it is named on a hub, so that a hub is asked once, and not while others wait for a turn.

    Raises:
        InvalidRequestError, UnavailableError: it cannot be fetched.
    """
    return given if given.hf_id is None else ModelIn(hf_config=resolve_model(given, hub).hf_config)


@cache
def _preset_architecture(key: str) -> Architecture:
    """The architecture of a preset, read once; as many are kept as the catalogue has."""
    preset = find_model(key)
    return architecture_from_config(preset.config, name=preset.name, loc=("model", "preset"))


# Whoever sweeps over devices or recipes asks about one model again and again; what follows from it is kept with it (``once``).
_of_params = lru_cache(maxsize=64)(architecture_from_params)
_of_shape = lru_cache(maxsize=64)(architecture_from_shape)
_of_shape_without_head_dim = lru_cache(maxsize=64)(architecture_without_head_dim)


@lru_cache(maxsize=64)
def _of_config(config: str, name: str | None, field: str) -> Architecture:
    """The architecture of a config.json, given as text since that can be looked up."""
    return architecture_from_config(json.loads(config), name=name, loc=("model", field))


def _from_shape(given: ShapeIn) -> Architecture:
    shape = _shape(given)
    if given.head_dim:
        return _of_shape(shape)
    found = _of_shape_without_head_dim(shape)
    if given.hidden_size % given.num_heads and not found.inferred:
        raise InvalidRequestError.at(
            "model",
            "shape",
            "num_heads",
            msg=f"num_heads {given.num_heads} does not divide hidden_size {given.hidden_size}",
            hint="give head_dim as well, or the exact total_params that it follows from",
        )
    return found


def _shape(given: ShapeIn) -> Shape:
    values = given.model_dump() | {
        "num_kv_heads": given.num_kv_heads or given.num_heads, "head_dim": given.head_dim or given.hidden_size // given.num_heads,
        "total_params": round(given.total_params) if given.total_params else None,
    }  # fmt: skip
    return Shape(**values)


def recipe_of(given: TrainingIn) -> Recipe:
    """The recipe of a request."""
    values = given.model_dump(exclude={"tokens_from", "adapter"})
    values["seq_len"] = tokens_of(given.tokens_from) if given.tokens_from else given.seq_len
    values["trainable_params"] = round(given.trainable_params) if given.trainable_params else None
    return Recipe(**values, adapter=_adapter(given.adapter) if given.adapter else None)


_USUAL_DROPOUT = 0.05


def _adapter(given: AdapterIn) -> Adapter:
    values = given.model_dump()
    values["dropout"] = _USUAL_DROPOUT if given.dropout is None else given.dropout
    values["targets"] = tuple(values["targets"]) if isinstance(values["targets"], list) else values["targets"]
    values["modules_to_save"] = tuple(values["modules_to_save"])
    return Adapter(**values)


def _check_training(setup: TrainingSetup) -> None:
    recipe = setup.recipe
    if recipe.adapter and not any(recipe.adapter.covers(w) for s in setup.model.stacks for w in s.block.weights):
        names = sorted({w.name for s in setup.model.stacks for w in s.block.weights if len(w.shape) == 2})[:12]
        raise InvalidRequestError.at(
            "training", "adapter", "targets", msg=f"no layer of this model is called any of {', '.join(recipe.adapter.targets)[:200]}",
            hint=f"its layers are {', '.join(names)}",
        )  # fmt: skip
    total = total_params(setup.model)
    if recipe.trainable_params and recipe.trainable_params > total:
        raise InvalidRequestError.at(
            "training",
            "trainable_params",
            msg=f"trainable_params {recipe.trainable_params:,} exceeds the model's {total:,} parameters",
            hint="leave it out to train everything",
        )
    if recipe.adapter and recipe.trainable_params:
        raise InvalidRequestError.at(
            "training",
            "trainable_params",
            msg="trainable_params and adapter are both given; the adapter already says what is trained",
            hint="drop one",
        )
