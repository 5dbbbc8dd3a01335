"""Which allocation a failed request was: sizes compared as the allocator rounds and prints them, then the moment and the stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt

from app.domain.diagnose.activations import activation_tensors
from app.domain.diagnose.situation import Situation, Tensor, in_words
from app.domain.diagnose.states import state_tensors
from app.domain.units import MIB

POOL_BYTES = (2 * MIB, 20 * MIB)
"""What torch's allocator asks the driver for where a tensor is small: up to 1 MiB, and up to 10 MiB."""
_GRAIN = 2 * MIB
_NEAR, _FAR = 0.004, 0.03
"""Shares by which a size may differ: counted as the same (padding, tensors left out of a group), and still thought of."""
_MOST_SEQUENCES = 64
_AROUND = {
    "forward": {"loss", "backward"}, "loss": {"forward", "backward"}, "backward": {"forward", "loss", "reduction"},
    "reduction": {"backward", "step"}, "step": {"reduction", "initialisation"}, "initialisation": {"load", "step"},
    "load": {"initialisation"}, "save": {"step"},
}  # fmt: skip
"""Moments that a stack may be read as, or that run into each other: a checkpointed block is computed again in backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What a log has of the allocation that failed.

    Attributes:
        requested: bytes; rounding: half a unit of the last digit that was printed.
        moment: when, None where the log does not say.
        hints: what its stack speaks of, the nearest to the failure first.
        likely: how likely each moment is by what was allocated already; empty where that is not known.
    """

    requested: int
    rounding: float = 0.0
    moment: str | None = None
    hints: tuple[str, ...] = ()
    likely: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An allocation with how well it explains the request.

    Attributes:
        off_frac: difference of the sizes beyond what rounding explains.
        weight: relative likelihood; confidence_frac: its share among all that were thought of.
    """

    tensor: Tensor
    moment: str
    off_frac: float
    weight: float
    confidence_frac: float = 0.0


def match(situation: Situation, clues: Clues) -> tuple[Match, ...]:
    """Allocations of the run that the request can be, the most likely first."""
    low, high = _range(clues)
    tensors = tensors_of(situation)
    found = [made for tensor in tensors for made in _weighed(tensor, clues, low, high)]
    solved = [
        made for tensor in tensors for with_batch in _solved(situation, tensor, clues) for made in _weighed(with_batch, clues, low, high)
    ]
    return _ranked([*found, *solved])


def tensors_of(situation: Situation) -> list[Tensor]:
    """Every allocation that the models know of."""
    return [*state_tensors(situation), *activation_tensors(situation)]


def _range(clues: Clues) -> tuple[float, float]:
    """Sizes of tensors that would be printed as this request, which is rounded up to whole grains."""
    return max(1.0, clues.requested - clues.rounding - _GRAIN), clues.requested + clues.rounding


def _weighed(tensor: Tensor, clues: Clues, low: float, high: float) -> Iterator[Match]:
    if tensor.bytes < 1:
        return
    off = tensor.off_by(low, high)
    if off > _FAR:
        return
    fit = 1.0 if off == 0 else 0.85 if off <= _NEAR else 0.5 * exp(-off / 0.01)
    moment, timing = _timing(tensor, clues)
    yield Match(tensor=tensor, moment=moment, off_frac=off, weight=tensor.prior * fit * timing * _told(tensor, clues.hints))


def _timing(tensor: Tensor, clues: Clues) -> tuple[str, float]:
    """The moment the allocation was made at, and how well that goes with the log."""
    if clues.moment is not None:
        if clues.moment in tensor.moments:
            return clues.moment, 1.0
        near = [m for m in tensor.moments if m in _AROUND.get(clues.moment, ())]
        return (near[0], 0.3) if near else (tensor.moments[0], 0.02)
    likely = clues.likely or {}
    best = max(tensor.moments, key=lambda moment: likely.get(moment, 0.5))
    return best, likely.get(best, 0.5)


def _told(tensor: Tensor, hints: Sequence[str]) -> float:
    """More for what the stack names, most for what it names nearest to the failure."""
    places = [place for place, hint in enumerate(hints) if hint in tensor.hints]
    if places:
        return 8.0 / (1 + min(places))
    return 0.5 if hints else 1.0


def _solved(s: Situation, tensor: Tensor, clues: Clues) -> Iterator[Tensor]:
    """The same allocation for another number of sequences or tokens, where those were not said or are seldom full."""
    requested, told = clues.requested, any(hint in tensor.hints for hint in clues.hints)
    if tensor.per_token and s.seq_len and s.micro_batch is None:
        batch = round(requested / (tensor.per_token * s.seq_len / s.sp))
        if 1 <= batch <= _MOST_SEQUENCES:
            size = batch * s.seq_len / s.sp * tensor.per_token
            text = f"{tensor.arithmetic} with B = {batch} sequences of {in_words(s.seq_len)}"
            yield replace(
                tensor, bytes=size, least=size - batch * tensor.per_token, arithmetic=text, prior=tensor.prior * _usual(batch), batch=batch
            )
    if tensor.per_token and told:
        tokens = requested / tensor.per_token
        if tokens >= 1 and (s.tokens is None or tokens <= 1.001 * s.tokens):
            text = f"{in_words(round(tokens))} tokens × {in_words(tensor.per_token)} bytes a token"
            yield replace(tensor, bytes=float(requested), arithmetic=text, prior=tensor.prior * 0.15)
    if tensor.per_square:
        yield from _solved_square(s, tensor, requested, told=told)


def _usual(batch: int) -> float:
    """How usual a micro-batch is: the larger, the likelier some number of sequences fits any size by chance.

    Example:
        >>> _usual(1), _usual(8), round(_usual(7), 4)
        (0.5, 0.0625, 0.0031)
    """
    return 0.5 / batch if batch & (batch - 1) == 0 else 0.15 / batch**2


def _solved_square(s: Situation, tensor: Tensor, requested: int, *, told: bool) -> Iterator[Tensor]:
    if s.seq_len and s.micro_batch is None:
        batch = round(requested / (tensor.per_square * s.seq_len**2))
        if 1 <= batch <= _MOST_SEQUENCES:
            text = f"{tensor.arithmetic} with B = {batch} and S = {in_words(s.seq_len)}"
            yield replace(
                tensor, bytes=batch * tensor.per_square * s.seq_len**2, arithmetic=text, prior=tensor.prior * _usual(batch), batch=batch
            )
    if told:
        batch = s.micro_batch or 1
        length = sqrt(requested / (tensor.per_square * batch))
        if s.seq_len is None or length <= 1.001 * s.seq_len:
            text = f"{tensor.arithmetic.partition(' = ')[0]} with B = {batch} and S = {in_words(round(length))}"
            yield replace(tensor, bytes=float(requested), arithmetic=text, prior=tensor.prior * 0.15)


def _ranked(found: Iterable[Match]) -> tuple[Match, ...]:
    """One of each name, the likeliest; shares of all of them."""
    best: dict[str, Match] = {}
    for made in found:
        if made.tensor.name not in best or best[made.tensor.name].weight < made.weight:
            best[made.tensor.name] = made
    ordered = sorted(best.values(), key=lambda made: -made.weight)
    total = sum(made.weight for made in ordered)
    # A likelihood that is small in itself is no certainty because nothing else was thought of.
    return tuple(replace(made, confidence_frac=made.weight / (total + _UNTHOUGHT)) for made in ordered)


_UNTHOUGHT = 0.08
