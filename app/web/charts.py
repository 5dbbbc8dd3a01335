"""Coordinates of the charts: shares of the width in percent, so that the SVG in the templates scales without a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.domain.units import format_gib, format_number

LABEL_WIDTHS = (400, 560, 720, 880, 1000)
"""Chart widths in pixels, as in the stylesheet, from which a segment can carry its label; others are named under the bar."""
PIXELS_PER_CHARACTER, LABEL_MARGIN = 6.7, 12
CATEGORIES = ("parameters", "gradients", "optimizer_states", "adapters", "activations", "logits", "buffers", "overhead")
TIME_PARTS = {"compute_s": "compute", "exposed_communication_s": "communication", "optimizer_s": "optimizer", "offload_s": "offload"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a stacked bar.

    Attributes:
        css: class of its category, which fixes its colour.
        label, value, share: what it is, in words.
        x, width: where it lies, in percent of the chart.
        label_from: width of the chart in pixels from which its label fits inside; 0 where it never does.
        soft: a fitted figure, drawn lighter.
    """

    css: str
    label: str
    value: str
    share: str
    x: float
    width: float
    label_from: int
    soft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A labelled line at ``x`` percent; ``anchor`` keeps its text inside the chart."""

    x: float
    label: str
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stacked bar from zero with its limit and its 90 % interval."""

    title: str
    segments: tuple[Segment, ...]
    total: str
    limit: Mark | None = None
    whisker: tuple[float, float] | None = None

    @property
    def desc(self) -> str:
        """The segments in words, for those who do not see them."""
        return ", ".join(f"{s.label} {s.value}" for s in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    css: str
    label: str
    value: float
    soft: bool = False


def memory_bar(gpu: dict[str, Any]) -> Bar:
    """One GPU's memory at the peak against what may be used, fitted parts softer, the interval as a whisker."""
    reserve = gpu["device_bytes"] - gpu["peak_reserved_bytes"]
    low, high = (bound + reserve for bound in gpu["interval_90_bytes"])
    capacity = gpu["capacity_bytes"]
    top = max(gpu["device_bytes"], capacity, high) * 1.01
    parts = _by_category(gpu["terms"])
    segments = _stack(parts, top, format_gib)
    used = format_gib(gpu["device_bytes"])
    return Bar(
        title=f"Memory of one GPU at its peak: {used} of {format_gib(capacity)}",
        segments=segments,
        total=used,
        limit=_mark(capacity, top, f"{format_gib(capacity)} usable"),
        whisker=(_percent(low, top), _percent(high, top)),
    )


def pool_bar(title: str, pool: dict[str, Any]) -> Bar | None:
    """Host memory or disks of one node; None where nothing is used."""
    if not pool["peak_bytes"]:
        return None
    capacity = pool["capacity_bytes"]
    top = max(pool["peak_bytes"], capacity or 0) * 1.01
    parts = [_Part(css=t["category"], label=t["name"], value=t["bytes"], soft=t["exactness"] == "fitted") for t in pool["terms"]]
    segments = _stack(parts, top, format_gib)
    of = f" of {format_gib(capacity)}" if capacity else ""
    used = format_gib(pool["peak_bytes"])
    limit = _mark(capacity, top, f"{format_gib(capacity)} there") if capacity else None
    return Bar(title=f"{title}: {used}{of}", segments=segments, total=used, limit=limit)


def moment_bars(gpu: dict[str, Any]) -> tuple[tuple[str, str, bool, Bar], ...]:
    """What is allocated at each moment: name, total, whether it is the peak, and a bar on one common scale."""
    moments = [m for m in gpu["moments"] if m["allocated_bytes"]]
    capacity = gpu["capacity_bytes"]
    top = max(capacity, *(m["allocated_bytes"] for m in moments))
    limit = _mark(capacity, top, "") if top > capacity else None
    rows = []
    for moment in moments:
        segments = _stack(_by_category(moment["terms"]), top, format_gib)
        total = format_gib(moment["allocated_bytes"])
        bar = Bar(title=f"{moment['name']}: {total}", segments=segments, total=total, limit=limit)
        rows.append((moment["name"], total, moment["name"] == gpu["peak_moment"], bar))
    return tuple(rows)


def time_bar(time: dict[str, Any]) -> Bar:
    """Where one optimizer step goes."""
    low, high = time["interval_90_s"]
    top = max(time["step_s"], high) * 1.01
    words = {"communication": "exposed communication", "optimizer": "optimizer step", "offload": "offload traffic"}
    parts = [_Part(css=css, label=words.get(css, css), value=time[key]) for key, css in TIME_PARTS.items() if time[key] > 0]
    segments = _stack(parts, top, seconds)
    total = seconds(time["step_s"])
    return Bar(title=f"One optimizer step: {total}", segments=segments, total=total, whisker=(_percent(low, top), _percent(high, top)))


def seconds(value: float) -> str:
    """A duration with three significant digits: ``1.34 s``, ``12 ms``.

    Example:
        >>> seconds(1.3421), seconds(0.01198), seconds(7300)
        ('1.34 s', '12 ms', '7,300 s')
    """
    return f"{format_number(value)} s" if value >= 0.1 or value == 0 else f"{format_number(value * 1000)} ms"


def _by_category(terms: Iterable[dict[str, Any]]) -> list[_Part]:
    """Parts in the fixed order of categories; within one, fitted figures apart from counted ones."""
    listed = list(terms)
    parts = []
    for category in CATEGORIES:
        for soft in (False, True):
            found = [t["bytes"] for t in listed if t["category"] == category and (t["exactness"] == "fitted") == soft]
            if found:
                parts.append(_Part(css=category, label=category.replace("_", " "), value=sum(found), soft=soft))
    return parts


def _stack(parts: Iterable[_Part], top: float, show: Callable[[float], str]) -> tuple[Segment, ...]:
    listed = [part for part in parts if part.value > 0]
    total = sum(part.value for part in listed) or 1
    segments, x = [], 0.0
    for part in listed:
        width, value = _percent(part.value, top), show(part.value)
        share = f"{format_number(100 * part.value / total)} %"
        need = len(f"{part.label} {value}") * PIXELS_PER_CHARACTER + LABEL_MARGIN
        label_from = next((pixels for pixels in LABEL_WIDTHS if pixels * width >= 100 * need), 0)
        at = round(x, 2)
        segments.append(
            Segment(css=part.css, label=part.label, value=value, share=share, x=at, width=width, label_from=label_from, soft=part.soft)
        )
        x += 100 * part.value / top
    return tuple(segments)


def _mark(value: float, top: float, label: str) -> Mark:
    x = _percent(value, top)
    return Mark(x=x, label=label, anchor="end" if x > 50 else "start")


def _percent(value: float, top: float) -> float:
    return round(100 * value / top, 2)
