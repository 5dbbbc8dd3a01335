"""The recommended plan and its alternatives: device memory against speed, with the line that nothing beats."""

from __future__ import annotations

from typing import Any

from app.domain.units import GIB, format_gib, format_number
from app.web.figures.figure import Canvas, Document, Figure, Spec, Table
from app.web.figures.style import axis, described, noted, rule
from app.web.wording import plan_label

_AXIS_PX, _HEIGHT = 64, 230


def alternatives(document: Document, canvas: Canvas) -> Figure:
    """The chart of ``recommended`` (number 1) and ``alternatives``."""
    points = [_point(n, c, canvas) for n, c in enumerate([document["recommended"], *document["alternatives"]], 1)]
    capacity = document["recommended"]["memory"]["gpu"]["capacity_bytes"] / GIB
    memory, speed = [p["gib"] for p in points], [p["tokens_per_s_per_gpu"] for p in points]
    across, up = _domain([*memory, capacity], 0.06, 0.06), _domain(speed, 0.15, 0.2)
    rows = [(p["number"], p["plan"], p["bytes"], p["tokens_per_s_per_gpu"], p["verdict"]) for p in points]
    spec: Spec = {
        "width": max(160, canvas.px - _AXIS_PX),
        "height": _HEIGHT,
        "layer": [
            {
                "data": {"values": _front(points)},
                "mark": {"type": "line", "interpolate": "step-after", "color": "@strong-line", "strokeWidth": 1.5, "aria": False},
                "encoding": {
                    "x": {"field": "gib", "type": "quantitative", "scale": {"domain": across, "nice": False, "zero": False},
                          "axis": axis("GPU memory at the peak, GiB", tickCount=6)},
                    "y": {"field": "tokens_per_s_per_gpu", "type": "quantitative",
                          "scale": {"domain": up, "nice": False, "zero": False}, "axis": axis("tokens/s per GPU", tickCount=5)},
                    "order": {"field": "gib", "type": "quantitative"},
                },
            },
            *rule(capacity, "x", f"{format_gib(capacity * GIB)} usable"),
            *_marks(points),
            *_named(points[0], across),
        ],
        "resolve": {"scale": {"color": "independent"}},
    }  # fmt: skip
    return Figure(
        name="alternatives", title="Plans by memory and speed", message=_message(points), spec=spec, height=_HEIGHT + 66,
        table=Table(columns=("number", "plan", "device bytes", "tokens/s per GPU", "verdict"), rows=rows),
    )  # fmt: skip


def _marks(points: list[dict[str, Any]]) -> list[Spec]:
    """Points with their numbers, the recommended one last so that none covers it; a diamond, the others circles."""
    listed = list(reversed(points))
    x, y = {"field": "gib", "type": "quantitative"}, {"field": "tokens_per_s_per_gpu", "type": "quantitative"}
    link = {"href": {"field": "href"}} if all(point["href"] for point in points) else {}
    role, hand = {"field": "role", "type": "nominal"}, {"cursor": "pointer"} if link else {}
    return [
        {
            "data": {"values": listed},
            "mark": {"type": "point", "filled": True, "opacity": 1, "stroke": "@ink", "strokeWidth": 1.5} | hand,
            "encoding": {
                "x": x, "y": y,
                "shape": role | {"scale": {"domain": ["recommended", "alternative"], "range": ["diamond", "circle"]}, "legend": None},
                "color": role | {"scale": {"domain": ["recommended", "alternative"], "range": ["@primary", "@panel"]}, "legend": None},
                "size": {"field": "size", "type": "quantitative", "scale": None},
            } | described("about") | link,
        },
        {
            "data": {"values": listed},
            "mark": {"type": "text", "fontSize": 11, "fontWeight": 600, "aria": False} | hand,
            "encoding": {
                "x": x, "y": y, "text": {"field": "number"},
                "color": role | {"scale": {"domain": ["recommended", "alternative"], "range": ["@on-primary", "@ink"]}, "legend": None},
            } | link,
        },
    ]  # fmt: skip


def _named(best: dict[str, Any], across: list[float]) -> list[Spec]:
    """The word beside the recommended plan, on the side that has room."""
    right = best["gib"] > sum(across) / 2
    place = {"x": {"field": "gib", "type": "quantitative"}, "y": {"field": "tokens_per_s_per_gpu", "type": "quantitative"}}
    values = [{key: best[key] for key in ("gib", "tokens_per_s_per_gpu")} | {"label": "recommended"}]
    return noted(values, place, {"align": "right" if right else "left", "dx": -18 if right else 18})


def _point(number: int, candidate: Document, canvas: Canvas) -> dict[str, Any]:
    size, rate = candidate["memory"]["gpu"]["device_bytes"], candidate["time"]["tokens_per_s_per_gpu"]
    label = plan_label(candidate["settings"])
    role = "recommended" if number == 1 else "alternative"
    return {
        "number": number, "plan": label, "role": role,
        "size": 520 if number == 1 else 330, "bytes": size, "gib": size / GIB, "tokens_per_s_per_gpu": rate,
        "verdict": candidate["verdict"].replace("_", " "), "href": canvas.links[number - 1] if canvas.links else "",
        "about": f"{number}, {role}: {label}, {format_gib(size)}, {format_number(rate)} tokens/s per GPU",
    }  # fmt: skip


def _front(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points that no other beats in both, by rising memory."""
    kept: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda p: (p["gib"], -p["tokens_per_s_per_gpu"])):
        if not kept or point["tokens_per_s_per_gpu"] > kept[-1]["tokens_per_s_per_gpu"]:
            kept.append(point)
    return [{key: point[key] for key in ("gib", "tokens_per_s_per_gpu")} for point in kept]


def _message(points: list[dict[str, Any]]) -> str:
    best, others = points[0], points[1:]
    memory, speed = format_gib(best["bytes"]), format_number(best["tokens_per_s_per_gpu"])
    if not others:
        return f"The plan needs {memory} for {speed} tokens/s per GPU; there is no alternative."
    lean, fast = min(others, key=lambda p: int(p["bytes"])), max(others, key=lambda p: float(p["tokens_per_s_per_gpu"]))
    return (
        f"The recommended plan needs {memory} for {speed} tokens/s per GPU; the leanest alternative needs {format_gib(lean['bytes'])}, "
        f"the fastest makes {format_number(fast['tokens_per_s_per_gpu'])} tokens/s per GPU."
    )


def _domain(values: list[float], below: float, above: float) -> list[float]:
    low, high = min(values), max(values)
    spread = high - low or 0.2 * high or 1.0
    return [max(0.0, low - below * spread), high + above * spread]
