"""The life of a parameter under each strategy: what one GPU holds at each moment of a step, and what moves, in a small example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from app.domain.cards import entry
from app.domain.errors import NotFoundError
from app.domain.memory.moments import (
    BACKWARD_FIRST,
    BACKWARD_NEXT,
    BACKWARD_SECOND,
    FORWARD,
    MOMENT_LABELS,
    MOMENTS,
    REDUCTION,
    STEP,
)
from app.domain.parallel.strategy import STRATEGIES, Strategy
from app.domain.plan import Candidate
from app.domain.traffic.volumes import Traffic
from app.services.method.examples import NO_OFFLOAD, Example, Worked, evaluate, request

MODEL = "tinyllama-1.1b"
_WHEN = {
    "forward": (FORWARD,),
    "backward": (BACKWARD_SECOND, BACKWARD_NEXT, BACKWARD_FIRST),
    "last_backward": (REDUCTION,),
    "nothing": (STEP,),
}
"""Moments by which a collective has run or is running, by what hides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One term at one moment: bytes that are alive, and the share of it that is."""

    key: str
    name: str
    category: str
    exactness: str
    value: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeMoment:
    """A moment of the step.

    Attributes:
        key, label: which.
        total: allocated bytes of one GPU.
        held: what they are, by the order of the ledger.
        came, left: bytes by the name of a term that grew or shrank since the moment before.
        moves: collectives of this moment.
    """

    key: str
    label: str
    total: float
    held: tuple[Held, ...]
    came: tuple[tuple[str, float], ...]
    left: tuple[tuple[str, float], ...]
    moves: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """What one GPU keeps of a state between steps: bytes of one element, and the ranks that hold one copy together."""

    name: str
    bytes_each: float
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One strategy's row with its example."""

    slug: str
    strategy: Strategy
    worked: Worked
    candidate: Candidate
    divided: tuple[Divided, ...]
    moments: tuple[LifeMoment, ...]


def slug_of(strategy: Strategy) -> str:
    """A strategy's name in an address: its own where the name alone means it, else with its framework.

    Example:
        >>> [slug_of(s) for s in STRATEGIES][:4]
        ['ddp', 'ddp-deepspeed', 'zero1-ddp', 'zero1']
    """
    meant = next(s for s in STRATEGIES if s.name == strategy.name and not s.by_framework_only)
    return strategy.name if strategy is meant else f"{strategy.name}-{strategy.framework}"


def lives() -> tuple[Life, ...]:
    """Every strategy's, from the simplest to the most complex."""
    return tuple(life(slug_of(strategy)) for strategy in STRATEGIES)


@cache
def life(slug: str) -> Life:
    """One strategy's.

    Raises:
        NotFoundError: there is none of that name.
    """
    slugs = {slug_of(strategy): strategy for strategy in STRATEGIES}
    if slug not in slugs:
        raise NotFoundError(f"there is no strategy {slug[:80]!r}; there are {', '.join(slugs)}")
    strategy = slugs[slug]
    worked = evaluate(_example(slug, strategy))
    return Life(slug=slug, strategy=strategy, worked=worked, candidate=worked.candidate, divided=_divided(worked), moments=_moments(worked))


def _example(slug: str, strategy: Strategy) -> Example:
    constraints: dict[str, Any] = {"framework": strategy.framework, "strategy": strategy.name}
    if strategy.framework != "ddp" and strategy.states != "none":
        constraints |= NO_OFFLOAD
    if strategy.states == "group":
        constraints["shard_group_size"] = 4
    body = request(
        MODEL, constraints=constraints, seq_len=1024, micro_batch=1, grad_accum=1, global_batch=None, activation_checkpointing="full"
    )
    return Example(key=slug, title=f"TinyLlama-1.1B on 8 H100 with {strategy.label}", body=body)


def _divided(worked: Worked) -> tuple[Divided, ...]:
    c, i = worked.evaluation.columns, worked.place
    rows = (
        ("parameters", c.param_bytes, c.param_ranks),
        ("gradients", c.grad_bytes, c.grad_ranks),
        ("fp32 master weights", c.master_bytes, c.state_ranks),
        ("optimizer states", c.state_bytes, c.state_ranks),
    )
    found = [Divided(name=name, bytes_each=float(each.item(i)), ranks=int(ranks.item(i))) for name, each, ranks in rows]
    return tuple(row for row in found if row.bytes_each)


def _moments(worked: Worked) -> tuple[LifeMoment, ...]:
    memory, place, out = worked.evaluation.memory, worked.place, list[LifeMoment]()
    before: dict[str, float] = {}
    for row, moment in enumerate(MOMENTS):
        held = _held(worked, moment)
        now = _by_name(held)
        changes = {name: now.get(name, 0.0) - before.get(name, 0.0) for name in (*before, *(n for n in now if n not in before))}
        out.append(
            LifeMoment(
                key=moment, label=MOMENT_LABELS[moment], total=float(memory.by_moment[row, place]), held=held,
                came=tuple((name, more) for name, more in changes.items() if more >= 1),
                left=tuple((name, -more) for name, more in changes.items() if more <= -1),
                moves=_moves(worked.evaluation.speed.traffic, moment, place),
            )
        )  # fmt: skip
        before = now
    return tuple(out)


def _held(worked: Worked, moment: str) -> tuple[Held, ...]:
    found = []
    for line in worked.evaluation.memory.gpu.lines:
        share = entry(line.alive.get(moment, 0.0), worked.place)
        value = float(line.value.item(worked.place)) * share
        if value:
            found.append(
                Held(
                    key=line.card.key, name=line.card.title, category=line.category, exactness=line.card.sureness, value=value, share=share
                )
            )
    return tuple(found)


def _by_name(held: tuple[Held, ...]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for term in held:
        sums[term.name] = sums.get(term.name, 0.0) + term.value
    return sums


def _moves(traffic: Traffic, moment: str, place: int) -> tuple[str, ...]:
    """Names of the collectives that run at a moment."""
    lines = (traffic.ledger.lines[flow.line] for flow in traffic.flows if moment in _WHEN[flow.hidden_by])
    return tuple(dict.fromkeys(line.card.title for line in lines if line.value.item(place) >= 1))
