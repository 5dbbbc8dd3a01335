"""Predicted against measured: tables by source, and a scatter on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.catalog.data import document
from app.domain.errors import InvalidRequestError
from app.domain.units import format_gib, format_number

SIZE = 360
"""Side of the scatter's square, in units of its view box."""
_STEPS = (1, 2, 5)
_BANDS = (0.2, 0.1)


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic axis from 0 to ``SIZE``."""

    low: float
    high: float

    def at(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(SIZE * part, 1)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; powers alone where those are many."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [step * 10.0**power for power in range(first, last + 1) for step in _STEPS]
        inside = [value for value in found if self.low <= value <= self.high]
        return inside if len(inside) <= 7 else [value for value in inside if math.log10(value).is_integer()]


def accuracy_view(family: str) -> dict[str, Any]:
    """Every section; with the rows of one source where one is named.

    Raises:
        InvalidRequestError: no measurement is of that source.
    """
    data = document("accuracy")
    families = sorted({row["family"] for section in data["sections"] for row in section["families"]})
    if family and family not in families:
        raise InvalidRequestError.at("source", msg=f"no measurement is of source {family[:80]!r}", hint=f"there are {', '.join(families)}")
    return {
        "engine_version": data["engine_version"],
        "simulated": data["simulated"],
        "family": family,
        "families": families,
        "sections": [_section(n, section, family, data["cited"]) for n, section in enumerate(data["sections"])],
        "cited": _cited(data, family),
    }


def _section(number: int, section: Mapping[str, Any], family: str, cited: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    chosen = [row for row in section["rows"] if row[1] == family]
    show = format_gib if section["unit"] == "bytes" else format_number
    return {
        "id": f"section-{number}",
        "title": section["title"],
        "unit": section["unit"],
        "verdicts": section["verdicts"],
        "pooled": section["pooled_median_error_frac"],
        "all": section["all"],
        "families": section["families"],
        "scatter": _scatter(section, family),
        "rows": [
            {
                "run": run,
                "predicted": show(predicted),
                "measured": show(measured),
                "error": f"{100 * (predicted - measured) / measured:+.1f} %",
                "peak_at": peak,
                "url": cited[place]["url"],
            }
            for run, _, predicted, measured, peak, place in chosen
        ],
    }


def _scatter(section: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Points as paths of dots, measured to the right and predicted upwards, with the line of agreement and two bands."""
    gib = 2**30 if section["unit"] == "bytes" else 1
    pairs = [(row[1], row[3] / gib, row[2] / gib) for row in section["rows"]]
    values = [value for _, *pair in pairs for value in pair]
    scale = _Scale(min(values) / 1.25, max(values) * 1.25)
    unit = "GiB" if section["unit"] == "bytes" else "tokens/s"
    count, chosen = len(pairs), sum(of == family for of, _, _ in pairs)
    words = f"{count} runs" + (f", {chosen} of {family} ringed" if family else "")
    return {
        "size": SIZE,
        "unit": unit,
        "desc": f"{words}; {section['all']['within_20_frac']:.0%} of them lie within 20 per cent of the line of agreement.",
        "dots": _dots(scale, [(x, y) for of, x, y in pairs if of != family or not family]),
        "rings": _dots(scale, [(x, y) for of, x, y in pairs if family and of == family]),
        "bands": [{"label": f"±{100 * width:.0f} %", "points": _band(scale, width)} for width in _BANDS],
        "ticks": [
            {"at": scale.at(value), "up": round(SIZE - scale.at(value), 1), "label": format_number(value)} for value in scale.ticks()
        ],
    }


def _dots(scale: _Scale, points: Sequence[tuple[float, float]]) -> str:
    """One path with a stroke of no length at each point, which round caps draw as dots."""
    return "".join(f"M{scale.at(x):g} {SIZE - scale.at(y):g}h0" for x, y in points)


def _band(scale: _Scale, width: float) -> str:
    """Corners of the band in which a prediction is off by at most ``width``; what is outside the frame is cut off by it."""
    ends = [(0, scale.low * (1 + width)), (SIZE, scale.high * (1 + width)), (SIZE, scale.high * (1 - width)), (0, scale.low * (1 - width))]
    return " ".join(f"{x},{SIZE - scale.at(y):g}" for x, y in ends)


def _cited(data: Mapping[str, Any], family: str) -> list[dict[str, Any]]:
    """Publications by source, once each; those of one source where one is named."""
    found = {(row[1], row[5]) for section in data["sections"] for row in section["rows"] if family in ("", row[1])}
    return [{"family": of, **data["cited"][place]} for of, place in sorted(found)]
