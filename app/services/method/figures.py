"""Every card with the numbers of a worked example put in."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import app.domain as domain
from app.domain.cards import CARDS, Card, entry
from app.domain.checkpoint.result import CheckpointPlan
from app.domain.ledger import Ledger, formula_of
from app.domain.memory.moments import MOMENTS
from app.domain.plan import TermResult
from app.services.method.examples import EXAMPLES, Worked, work

CHECKPOINT_ROOM = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a term amounts to in an example.

    Attributes:
        example: key of the example.
        place: what the figure is of: ``gpu``, ``host``, ``nvme``, ``traffic``, ``time`` or ``checkpoint``.
        category: its colour.
        lifetime: always, forward, backward or step.
        formula: the equation with the example's numbers.
        value: bytes, or seconds where ``place`` is ``time``.
        alive: moments of the step at which some of it exists, with the share that does.
    """

    example: str
    place: str
    category: str
    lifetime: str
    formula: str
    value: float
    alive: tuple[tuple[str, float], ...] = ()


@cache
def all_cards() -> Mapping[str, Card]:
    """Every card of the domain by its key, in the order of the keys."""
    for module in pkgutil.walk_packages(domain.__path__, "app.domain."):
        importlib.import_module(module.name)
    return {key: CARDS[key] for key in sorted(CARDS)}


@cache
def figures() -> Mapping[str, Figure]:
    """The figure of every card that some example has, by the card's key."""
    missing, found = set(all_cards()), dict[str, Figure]()
    for example in EXAMPLES:
        if not missing:
            break
        for key, figure in _figures_of(work(example.key)):
            if key in missing:
                found[key] = figure
                missing.discard(key)
    return found


def _figures_of(worked: Worked) -> Iterator[tuple[str, Figure]]:
    memory, speed = worked.evaluation.memory, worked.evaluation.speed
    ledgers: tuple[tuple[str, Ledger], ...] = (
        ("gpu", memory.gpu), ("gpu", memory.overhead), ("host", memory.host), ("nvme", memory.nvme),
        ("traffic", speed.traffic.ledger), ("time", speed.compute), ("time", speed.optimizer), ("time", speed.offload),
    )  # fmt: skip
    for place, ledger in ledgers:
        yield from _lines_of(worked, place, ledger)
    by_title = {card.title: key for key, card in all_cards().items() if key.startswith(f"{CHECKPOINT_ROOM}.")}
    for term in _saved(worked.checkpoint()):
        yield by_title[term.name], _of_term(worked, term)


def _lines_of(worked: Worked, place: str, ledger: Ledger) -> Iterator[tuple[str, Figure]]:
    for line in ledger.lines:
        value = float(line.value.item(worked.place))
        if value <= 0:
            continue
        shares = ((moment, entry(line.alive[moment], worked.place)) for moment in MOMENTS if moment in line.alive)
        yield line.card.key, Figure(
            example=worked.example.key, place=place, category=line.category, lifetime=line.lifetime,
            formula=formula_of(line, worked.place), value=value, alive=tuple(pair for pair in shares if pair[1] > 0),
        )  # fmt: skip


def _saved(plan: CheckpointPlan) -> Iterator[TermResult]:
    yield from plan.terms
    yield from (export.host for export in plan.exports)
    yield plan.inference.weights
    if plan.inference.cache_per_token is not None:
        yield plan.inference.cache_per_token


def _of_term(worked: Worked, term: TermResult) -> Figure:
    return Figure(
        example=worked.example.key, place=CHECKPOINT_ROOM, category=term.category, lifetime=term.moment, formula=term.formula,
        value=term.value,
    )  # fmt: skip
