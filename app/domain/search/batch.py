"""Batch arithmetic: global_batch = micro_batch · grad_accum · dp, kept exactly."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.errors import InvalidRequestError
from app.domain.parallel.mesh import divisors
from app.domain.recipe.recipe import Recipe

_FREE_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def batch_choices(recipe: Recipe, dp: int) -> Iterator[tuple[int, int]]:
    """(micro_batch, grad_accum) pairs that the request leaves open.

    Raises:
        InvalidRequestError: the pinned numbers cannot be multiplied to the global batch.

    Example:
        >>> list(batch_choices(Recipe(seq_len=1, global_batch=32), 8))
        [(1, 4), (2, 2), (4, 1)]
    """
    micro, accum, total = recipe.micro_batch, recipe.grad_accum, recipe.global_batch
    if total is None:
        micros = [micro] if micro else list(_FREE_MICRO_BATCHES)
        yield from ((m, accum or 1) for m in micros)
        return
    if total % dp:
        lower, upper = total // dp * dp, -(-total // dp) * dp
        near = f"{lower} or {upper}" if lower else str(upper)
        raise InvalidRequestError.at(
            "training",
            "global_batch",
            msg=f"global_batch {total} is not a multiple of the {dp} data-parallel ranks ({total} / {dp} = {total / dp:.3g})",
            hint=f"use {near}, or another number of GPUs",
        )
    per_rank = total // dp
    pairs = [(m, per_rank // m) for m in divisors(per_rank) if micro in (None, m) and accum in (None, per_rank // m)]
    if not pairs:
        given = " and ".join(f"{n} {v}" for n, v in (("micro_batch", micro), ("grad_accum", accum)) if v)
        raise InvalidRequestError.at(
            "training",
            "global_batch",
            msg=f"global_batch {total} = micro_batch × grad_accum × {dp} ranks needs micro_batch × grad_accum = {per_rank}, "
            f"which {given} cannot make",
            hint=f"leave one of them open, or use global_batch {(micro or 1) * (accum or 1) * dp}",
        )
    yield from pairs
