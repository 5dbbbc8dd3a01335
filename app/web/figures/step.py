"""Where one optimizer step goes, and which part of the communication hides behind compute."""

from __future__ import annotations

from typing import Any

from app.web.charts import seconds
from app.web.figures.figure import Canvas, Document, Figure, Spec, Table
from app.web.figures.style import CHARACTER_PX, IN_BAR, axis, described

_PARTS = (
    ("compute", "compute_s", "compute"),
    ("exposed communication", "exposed_communication_s", "communication"),
    ("optimizer step", "optimizer_s", "optimizer"),
    ("offload traffic", "offload_s", "offload"),
)
_HIDDEN = "hidden communication"
_LABELS_PX, _TOTAL_PX, _BAND_PX = 110, 16, 46
_INTERVAL_PX = 20
"""Between the middle of the bar and its 90 % interval."""


def step(document: Document, canvas: Canvas) -> Figure:
    """The chart of ``recommended.time`` and ``recommended.communication``."""
    best = document["recommended"]
    time, flows = best["time"], best["communication"]["terms"]
    exposed = time["exposed_communication_s"]
    hidden = max(0.0, sum(t["seconds"] for t in flows) - sum(t["exposed_s"] for t in flows))
    low, high = time["interval_90_s"]
    top = 1.02 * max(high, time["step_s"], hidden)
    plot = max(120, canvas.px - _LABELS_PX - _TOTAL_PX)
    parts, at = [], 0.0
    for name, key, colour in _PARTS:
        if time[key] > 0:
            parts.append(_part("step", (name, colour), (at, time[key]), plot / top))
            at += time[key]
    if hidden or exposed:
        start = max(0.0, time["compute_s"] - hidden)
        parts += [_part("communication", (_HIDDEN, "strong-line"), (start, hidden), plot / top)] if hidden else []
        parts += (
            [_part("communication", ("exposed communication", "communication"), (start + hidden, exposed), plot / top)] if exposed else []
        )
    total = seconds(time["step_s"])
    message = f"One step takes {total}; {seconds(exposed)} of it is communication that compute does not hide."
    if not flows:
        message = f"One step takes {total}; one GPU has nobody to talk to."
    return Figure(
        name="step", title="One optimizer step", message=message, spec=_spec(parts, (low, high), top, plot), height=2 * _BAND_PX + 96,
        table=Table(columns=("row", "part", "seconds"), rows=[(p["row"], p["part"], p["seconds"]) for p in parts]),
    )  # fmt: skip


def _spec(parts: list[dict[str, Any]], interval: tuple[float, float], top: float, plot: int) -> Spec:
    names = list(dict.fromkeys(part["part"] for part in parts))
    colours = {part["part"]: f"@{part['colour']}" for part in parts}
    low, high = interval
    about = f"90 % interval: {seconds(low)} to {seconds(high)}"
    return {
        "width": plot,
        "height": {"step": _BAND_PX},
        "encoding": {"y": {"field": "row", "type": "nominal", "sort": None, "axis": axis(None, ticks=False)}},
        "layer": [
            {
                "data": {"values": parts},
                "mark": {"type": "bar", "height": {"band": 0.55}, "stroke": "@bg", "strokeWidth": 1},
                "encoding": {
                    "x": {"field": "from", "type": "quantitative", "scale": {"domain": [0, top], "nice": False},
                          "axis": axis("seconds", tickCount=6)},
                    "x2": {"field": "to"},
                    "color": {"field": "part", "type": "nominal", "scale": {"domain": names, "range": [colours[n] for n in names]},
                              "legend": {"columns": max(1, plot // 170)}},
                } | described("about"),
            },
            {
                "data": {"values": [part for part in parts if part["text"]]},
                "mark": {"type": "text", "align": "left", "dx": 5, "aria": False},
                "encoding": {"x": {"field": "from", "type": "quantitative"}, "text": {"field": "text"},
                             "color": {"field": "ink", "type": "nominal", "scale": None}},
            },
            {
                "data": {"values": [{"row": "step", "low": low, "high": high, "about": about}]},
                "mark": {"type": "rule", "color": "@ink", "strokeWidth": 1.5, "yOffset": _INTERVAL_PX},
                "encoding": {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}} | described("about"),
            },
            {
                "data": {"values": [{"row": "step", "low": low, "label": "90 % interval"}]},
                "mark": {"type": "text", "align": "right", "dx": -6, "yOffset": _INTERVAL_PX, "color": "@soft", "aria": False},
                "encoding": {"x": {"field": "low", "type": "quantitative"}, "text": {"field": "label"}},
            },
        ],
        "resolve": {"scale": {"color": "independent"}},
    }  # fmt: skip


def _part(row: str, kind: tuple[str, str], span: tuple[float, float], px_per_s: float) -> dict[str, Any]:
    (name, colour), (at, size) = kind, span
    text = f"{name} {seconds(size)}"
    texts = [t for t in (text, name, seconds(size)) if len(t) * CHARACTER_PX + 12 <= size * px_per_s]
    ink = {"strong-line": "@ink", "compute": "@on-deep"}.get(colour, IN_BAR)
    return {
        "row": row, "part": name, "colour": colour, "seconds": size, "from": at, "to": at + size, "text": texts[0] if texts else "",
        "ink": ink, "about": f"{row}: {text}",
    }  # fmt: skip
