"""Strategies: their table, and the life of a parameter under each."""

from __future__ import annotations

from typing import Any

from app.domain.memory.moments import MOMENT_LABELS, MOMENTS
from app.domain.parallel.strategy import Strategy
from app.domain.units import format_number
from app.services.method.lives import Held, Life, LifeMoment, life, lives
from app.web import charts
from app.web.method.rooms import amount, href, plan_href

WHOLE = {"none": "whole", "all": "over all ranks", "group": "over the shard group"}
_GATHERS = {
    0: "Parameters are whole on every rank, so nothing is gathered to compute.",
    1: "Each unit is gathered once in every micro-step, in forward, and stays whole until its backward.",
    2: "Each unit is gathered twice in every micro-step, for forward and again for backward, and freed in between.",
}
_REUSES = "Each unit is gathered for forward and again for backward in every micro-step, unless its next use is near enough to keep it."
_REDUCES = {
    ("all_reduce", False): "Gradients are all-reduced once a step, when the last micro-step's backward has them.",
    ("all_reduce", True): "Gradients are all-reduced in every micro-step, and each rank keeps its part.",
    ("reduce_scatter", True): "Gradients are reduce-scattered in every micro-step, so that each rank receives its part of the sum.",
}
_STEPS = {
    True: "Each rank steps its part of the parameters, and all parts are gathered after the step.",
    False: "Each rank steps what it holds; nothing has to be gathered after the step.",
}


def strategies_view() -> dict[str, Any]:
    """The table of strategies, with what each holds and moves in the small example."""
    found = lives()
    return {"example": found[0].worked.example.title.rsplit(" with ", 1)[0], "rows": [_row(one) for one in found]}


def strategy_view(slug: str, at: str) -> dict[str, Any]:
    """One strategy: what is divided, what moves, and what is alive when; ``at`` is the moment shown first."""
    one, found = life(slug), lives()
    top = max(moment.total for moment in one.moments)
    place = [other.slug for other in found].index(slug)
    return {
        "slug": slug,
        "label": one.strategy.label,
        "framework": one.strategy.framework,
        "example": {"title": one.worked.example.title, "href": plan_href(one.worked.example.body)},
        "sentences": _sentences(one.strategy),
        "divided": [
            {
                "name": d.name,
                "bytes_each": format_number(d.bytes_each),
                "ranks": d.ranks,
                "per_param": format_number(d.bytes_each / d.ranks),
            }
            for d in one.divided
        ],
        "flows": [
            {"name": t.name, "ranks": t.group_size, "bytes": amount(t.bytes_per_step), "formula": t.formula, "exact": t.bytes_per_step}
            for t in one.candidate.communication
        ],
        "moments": [_moment(moment, top) for moment in one.moments],
        "at": at if at in MOMENTS else max(one.moments, key=lambda m: m.total).key,
        "peak": max(one.moments, key=lambda m: m.total).key,
        "before": _neighbour(found, place - 1) if place else None,
        "after": _neighbour(found, place + 1) if place + 1 < len(found) else None,
    }


def _neighbour(found: tuple[Life, ...], place: int) -> dict[str, str]:
    return {"slug": found[place].slug, "label": found[place].strategy.label}


def _row(one: Life) -> dict[str, Any]:
    s, peak = one.strategy, max(one.moments, key=lambda m: m.total)
    sent = sum(t.bytes_per_step for t in one.candidate.communication)
    return {
        "slug": one.slug,
        "label": s.label,
        "framework": s.framework,
        "parameters": WHOLE[s.parameters],
        "gradients": WHOLE[s.gradients],
        "states": WHOLE[s.states],
        "gathers": s.gathers,
        "reduces": s.reduce_op.replace("_", "-"),
        "when": "each micro-step" if s.reduces_each_micro_step else "once a step",
        "resting": amount(one.moments[0].total),
        "peak": amount(peak.total),
        "peak_at": peak.label,
        "sent": amount(sent),
    }


def _sentences(s: Strategy) -> list[str]:
    gathers = _REUSES if s.framework == "deepspeed" and s.gathers == 2 else _GATHERS[s.gathers]
    return [gathers, _REDUCES[s.reduce_op, s.reduces_each_micro_step], _STEPS[s.gathers_after_step]]


def _moment(moment: LifeMoment, top: float) -> dict[str, Any]:
    return {
        "key": moment.key,
        "label": MOMENT_LABELS[moment.key],
        "total": amount(moment.total),
        "bytes": round(moment.total),
        "bar": _bar(moment, top),
        "held": [_held(term, top) for term in _in_order(moment.held)],
        "came": [{"name": name, "value": amount(value)} for name, value in moment.came],
        "left": [{"name": name, "value": amount(value)} for name, value in moment.left],
        "moves": list(moment.moves),
    }


def _bar(moment: LifeMoment, top: float) -> list[dict[str, Any]]:
    """Categories as segments of a bar that ends at ``top``."""
    sums = {category: sum(h.value for h in moment.held if h.category == category) for category in charts.CATEGORIES}
    segments, x = [], 0.0
    for category, value in sums.items():
        if value:
            width = 100 * value / top
            words = category.replace("_", " ")
            segments.append({"css": category, "words": words, "value": amount(value), "x": round(x, 2), "width": round(width, 2)})
            x += width
    return segments


def _in_order(held: tuple[Held, ...]) -> list[Held]:
    order = {category: n for n, category in enumerate(charts.CATEGORIES)}
    return sorted(held, key=lambda term: (order.get(term.category, len(order)), -term.value))


def _held(term: Held, top: float) -> dict[str, Any]:
    return {
        "name": term.name,
        "href": href(term.key),
        "css": term.category,
        "category": term.category.replace("_", " "),
        "value": amount(term.value),
        "bytes": round(term.value),
        "width": round(100 * term.value / top, 2),
        "share": "" if term.share == 1 else f"{format_number(100 * term.share)} %",
    }
