"""Memory and speed of a plan against one variable, with the place where it stops fitting."""

from __future__ import annotations

from typing import Any

from app.domain.units import GIB, format_gib, format_number
from app.services.what_if import Curve, Point, Variable
from app.web.figures.figure import Canvas, Figure, Spec, Table
from app.web.figures.style import axis, described, rule

TITLES: dict[Variable, str] = {
    "sequence": "Memory and speed by length of the sequence",
    "micro-batch": "Memory and speed by micro-batch",
    "gpus": "Memory and speed by number of GPUs",
}
_AXES: dict[Variable, str] = {"sequence": "tokens of a sequence", "micro-batch": "sequences of a micro-batch", "gpus": "GPUs"}
_UNITS: dict[Variable, str] = {"sequence": "tokens", "gpus": "GPUs"}
_COLUMNS = (
    "device bytes", "GPU overrun bytes", "tokens/s", "tokens/s per GPU", "step s", "micro-batch", "accumulation", "global batch", "verdict",
)  # fmt: skip
_AXIS_PX, _HEIGHT = 64, 130
_CROSS = "M-.7,-.7L.7,.7M-.7,.7L.7,-.7"
HEIGHT = 2 * _HEIGHT + 112
"""Of the drawing, in CSS pixels."""


def what_if(curve: Curve, canvas: Canvas, *, engine_version: str, saved_with: str = "") -> Figure:
    """The chart of one curve.

    Args:
        curve: as ``services.what_if`` computes it.
        engine_version: of the engine that computed it.
        saved_with: engine of the saved plan, where it is another one.
    """
    points = [_point(p, curve) for p in curve.points]
    note = f" Computed by engine {engine_version}, the plan was saved under {saved_with}." if saved_with else ""
    rate = "tokens_per_s" if curve.variable == "gpus" else "tokens_per_s_per_gpu"
    rows = [
        (p.value, p.device_bytes, p.over_bytes, p.tokens_per_s, p.tokens_per_s_per_gpu, p.step_s, p.micro_batch, p.grad_accum,
         p.global_batch, p.verdict.replace("_", " "))
        for p in curve.points
    ]  # fmt: skip
    width = max(140, canvas.px - _AXIS_PX)
    spec: Spec = {
        "vconcat": [
            {"width": width, "height": _HEIGHT, "layer": _memory(points, curve)},
            {"width": width, "height": _HEIGHT, "layer": _speed(points, curve, rate)},
        ],
        "spacing": 14,
        "resolve": {"scale": {"color": "independent", "shape": "independent"}},
        "usermeta": {"engine_version": engine_version},
    }
    return Figure(
        name=f"what-if-{curve.variable}", title=TITLES[curve.variable], message=_message(curve) + note, spec=spec,
        height=HEIGHT, table=Table(columns=(_AXES[curve.variable], *_COLUMNS), rows=rows),
    )  # fmt: skip


def _memory(points: list[dict[str, Any]], curve: Curve) -> list[Spec]:
    capacity = curve.capacity_bytes / GIB
    top = max(1.15 * capacity, min(2.5 * capacity, 1.05 * max(p["gib"] for p in points)))
    y = {"field": "gib", "type": "quantitative", "scale": {"domain": [0, top], "nice": False},
         "axis": axis("GiB of one GPU", tickCount=4)}  # fmt: skip
    limit = rule(capacity, "y", f"{format_gib(curve.capacity_bytes)} usable", align="left")
    return [*_curve(points, curve, y, labels=False), *limit, *_edge(curve, named=True)]


def _speed(points: list[dict[str, Any]], curve: Curve, rate: str) -> list[Spec]:
    title = "tokens/s" if rate == "tokens_per_s" else "tokens/s per GPU"
    y = {"field": rate, "type": "quantitative", "scale": {"zero": True}, "axis": axis(title, tickCount=4, format=",.0f")}
    return [*_curve(points, curve, y, labels=True), *_edge(curve, named=False)]


def _curve(points: list[dict[str, Any]], curve: Curve, y: Spec, *, labels: bool) -> list[Spec]:
    """A line with its points: circles fit, crosses do not, the diamond is the plan."""
    title = _AXES[curve.variable] if labels else None
    x = {
        "field": "value", "type": "quantitative", "scale": {"type": "log", "base": 2, "nice": False, "domain": _span(curve)},
        "axis": axis(title, format=",d", labels=labels, ticks=labels, values=_ticks(curve), labelOverlap="greedy", grid=False),
    }  # fmt: skip
    marked = {"field": "role", "type": "nominal"}
    legend = None if labels else {"orient": "top", "symbolStrokeWidth": 2, "symbolSize": 60, "offset": 20}
    domain, here = ["fits", "does not fit"], [point for point in points if point["here"]]
    others = {
        "x": x, "y": y, "shape": marked | {"scale": {"domain": domain, "range": ["circle", _CROSS]}, "legend": legend},
        "color": marked | {"scale": {"domain": domain, "range": ["@fits", "@bad"]}, "legend": legend},
    }  # fmt: skip
    line = {"type": "line", "color": "@soft", "strokeWidth": 1.5, "aria": False, "clip": True}
    point = {"type": "point", "opacity": 1, "strokeWidth": 2, "size": 40, "clip": True}
    return [
        {"data": {"values": points}, "mark": line, "encoding": {"x": x, "y": y}},
        {"data": {"values": points}, "mark": point, "encoding": others | described("about")},
        {
            "data": {"values": here},
            "mark": {"type": "point", "shape": "diamond", "filled": True, "opacity": 1, "size": 170, "color": "@primary", "clip": True},
            "encoding": {"x": x, "y": y} | described("about"),
        },
    ]


def _span(curve: Curve) -> list[float]:
    """Ends of the axis, a little beyond the values so that no mark is cut."""
    first, last = curve.points[0].value, curve.points[-1].value
    margin = max(1.04, (last / first) ** 0.025)
    return [first / margin, last * margin]


def _edge(curve: Curve, *, named: bool) -> list[Spec]:
    """The line behind the last value that fits."""
    if curve.last_fit is None:
        return []
    first, last = _span(curve)
    left = curve.last_fit**2 > first * last  # beyond the middle of a logarithmic axis
    line, *text = rule(curve.last_fit, "x", f"fits up to {curve.last_fit:,}", align="right" if left else "left")
    return [line, *text] if named else [line]


def _ticks(curve: Curve) -> list[int]:
    """Powers of two where lengths are drawn, else the values themselves."""
    values = [p.value for p in curve.points]
    if curve.variable != "sequence":
        return values
    return [2**n for n in range(25) if values[0] <= 2**n <= values[-1]]


def _point(point: Point, curve: Curve) -> dict[str, Any]:
    rate = f"{format_number(point.tokens_per_s_per_gpu)} tokens/s per GPU"
    here, word = point.value == curve.at, "fits" if point.fits else "does not fit"
    said = f"{_said(curve.variable, point.value)}: {format_gib(point.device_bytes)}, {rate}, {word}"
    return {
        "value": point.value, "bytes": point.device_bytes, "gib": point.device_bytes / GIB, "tokens_per_s": point.tokens_per_s,
        "tokens_per_s_per_gpu": point.tokens_per_s_per_gpu, "role": word, "here": here,
        "about": f"{said}, this plan" if here else said,
    }  # fmt: skip


def _message(curve: Curve) -> str:
    first, last, now = (_said(curve.variable, n) for n in (curve.points[0].value, curve.points[-1].value, curve.at))
    if curve.last_fit is not None:
        return f"With every other setting kept, the plan fits up to {_said(curve.variable, curve.last_fit)}; it has {now} now."
    fitting = [p.value for p in curve.points if p.fits]
    if not fitting:
        return f"With every other setting kept, the plan does not fit anywhere from {first} to {last}."
    if fitting[0] == curve.points[0].value:
        return f"With every other setting kept, the plan fits everywhere from {first} to {last}."
    return f"With every other setting kept, the plan fits from {_said(curve.variable, fitting[0])} on; it has {now} now."


def _said(variable: Variable, value: int) -> str:
    if variable == "micro-batch":
        return f"micro-batch {value:,}"
    return f"{value:,} {_UNITS[variable].removesuffix('s') if value == 1 else _UNITS[variable]}"
