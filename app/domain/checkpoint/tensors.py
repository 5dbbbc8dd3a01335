"""The tensors a run trains, one by one: what is saved is counted from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.model.architecture import Architecture, Role, Weight
from app.domain.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors of one shape.

    Attributes:
        shape: dims of each.
        count: how many.
        expert: the first dim counts experts.
    """

    shape: tuple[int, ...]
    count: int
    expert: bool = False

    @property
    def numel(self) -> int:
        """Elements of all of them."""
        return math.prod(self.shape) * self.count


def trained_tensors(model: Architecture, recipe: Recipe) -> tuple[Tensors, ...]:
    """Every trained tensor: the model's, or the factors of an adapter and the modules trained beside it.

    A partly frozen model is taken whole: which of its tensors are trained is not known.
    """
    blocks = [(w, s.owned) for s in model.stacks for w in s.block.weights]
    if recipe.adapter is None:
        whole = [*blocks, *((w, 1) for w in model.weights)]
        return tuple(Tensors(w.shape, w.copies * owned, expert=w.role is Role.EXPERT) for w, owned in whole)
    rank, covers = recipe.adapter.rank, recipe.adapter.covers
    covered = [(w, w.copies * owned) for w, owned in blocks if covers(w)]
    factors = [t for w, n in covered for t in (Tensors((rank, w.shape[1]), n), Tensors((w.shape[0], rank), n))]
    return (*factors, *(Tensors(w.shape, w.copies) for w in _saved_modules(model, recipe.adapter.modules_to_save)))


def tensor_count(tensors: Iterable[Tensors]) -> int:
    """How many tensors there are."""
    return sum(t.count for t in tensors)


def largest_shard_frac(tensors: Iterable[Tensors], ranks: int) -> float:
    """Share of all elements that the fullest of ``ranks`` holds when each tensor is cut along its first dim.

    Equation: Σ ⌈d0/n⌉·rest / Σ d0·rest; experts fewer than the ranks are cut along the next dim where that divides.

    Source: torch fully_shard, ``_init_sharded_param``; the emitted script's ``shard_placement_fn``.

    Example: 65 rows over 64 ranks leave two on each of the first.
        >>> largest_shard_frac([Tensors((65, 10), 1)], 64) * 650
        20.0
    """
    whole = held = 0
    for tensor in tensors:
        rows, inner = (*tensor.shape, 1, 1)[:2]
        inside = tensor.expert and rows < ranks and inner % ranks == 0
        cut = inner if inside else rows
        whole += tensor.numel
        held += tensor.numel // cut * -(-cut // ranks)
    return held / whole if whole else 0.0


def _saved_modules(model: Architecture, names: tuple[str, ...]) -> list[Weight]:
    wanted = {name.rsplit(".", 1)[-1] for name in names}
    saved = [w for w in model.weights if w.name.rsplit(".", 1)[-1] in wanted]
    if model.tied_embeddings and "lm_head" in wanted and "embed_tokens" not in wanted:
        saved.append(Weight("lm_head", (model.vocab_size, model.hidden_size), Role.HEAD))
    return saved
