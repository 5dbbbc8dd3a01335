"""Other models on the same GPUs: read from the request, checked, and what is said about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.domain.cluster.cluster import Pool
from app.domain.companions import setup_of
from app.domain.errors import FieldError, InvalidRequestError
from app.domain.model.architecture import Architecture
from app.domain.model.cache import cache_elements
from app.domain.plan import Plan, PlanWarning
from app.domain.recipe.companion import Companion, with_value_head
from app.domain.setup import TrainingSetup
from app.services.bounds import check_size
from app.services.request import CompanionIn


@contextmanager
def located(*at: str | int) -> Iterator[None]:
    """Errors raised inside are of fields below this one.

    Raises:
        InvalidRequestError: the error, at its place in the request.
    """
    try:
        yield
    except InvalidRequestError as error:
        moved = [FieldError((*at, *found.loc), found.msg, found.hint) for found in error.errors]
        raise type(error)(error.detail, moved) from error


def companion_of(given: CompanionIn, model: Architecture) -> Companion:
    """One companion as it was asked for.

    Raises:
        InvalidRequestError: it is to keep a cache that its model does not have, or loses a head it does not have.
    """
    if given.kv_cache_tokens and not cache_elements(model):
        raise InvalidRequestError.at(
            "kv_cache_tokens", msg=f"{model.name} keeps no keys and values from token to token, so it needs no cache",
            hint="leave kv_cache_tokens out",
        )  # fmt: skip
    if given.head == "value" and not model.vocab_size:
        raise InvalidRequestError.at("head", msg=f"{model.name} has no output head that a value head would replace", hint="leave head out")
    return Companion(
        role=given.role,
        model=with_value_head(model) if given.scores else model,
        trains=given.trains,
        precision=given.precision,
        replicated=given.sharding == "replicated" or (given.sharding is None and given.kv_cache_tokens is not None),
        on_host=given.offload_parameters == "cpu",
        micro_batch=given.micro_batch,
        seq_len=given.seq_len,
        cache_tokens=given.kv_cache_tokens,
    )


def check_companions(setup: TrainingSetup, pools: Sequence[Pool]) -> None:
    """Refuse companions that are too large to be counted.

    Raises:
        InvalidRequestError: at the field that makes one so.
    """
    for number, companion in enumerate(setup.companions):
        own = setup_of(setup, companion)
        with located("companions", number):
            check_size(own.model, own.recipe, pools)


_HOW = {
    "deepspeed": "give each frozen one deepspeed.initialize without an optimizer, with stage 3 where the plan has stage 3 and stage 0 "
    "otherwise, and each trained one an engine of its own with this ds_config.json",
    "fsdp2": "call fully_shard on the blocks and the root of each, as the script does for its own model, and give each trained one an "
    "optimizer of its own",
    "ddp": "load each frozen one whole on its GPU, and wrap each trained one in DistributedDataParallel with an optimizer of its own",
}


def left_out_of_files(plan: Plan) -> tuple[PlanWarning, ...]:
    """The files train one model; where the others are loaded is said."""
    if not plan.companions:
        return ()
    roles = ", ".join(companion.role for companion in plan.companions)
    frozen = "Set frozen ones to eval() and run them under torch.no_grad()."
    said = PlanWarning(
        code="companions_not_in_files", severity="warning", field="companions",
        message=f"The files train {plan.model.name} alone; {roles} {'is' if len(plan.companions) == 1 else 'are'} counted in the figures, "
        "and loaded by your own script.",
        fix=f"After the trained model is built and before the first step, {_HOW[plan.recommended.settings.framework]}. {frozen}",
    )  # fmt: skip
    return (said,)
