"""Memory of one GPU: a stacked bar for the device at its peak and for what is allocated at each moment, against the capacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.domain.units import GIB, format_gib
from app.web.figures.figure import Canvas, Document, Figure, Spec, Table
from app.web.figures.style import CHARACTER_PX, IN_BAR, axis, described, rule

CATEGORIES = ("parameters", "gradients", "optimizer_states", "adapters", "activations", "logits", "buffers", "overhead")
_VARIABLES = {"optimizer_states": "optimizer"}
_TOTAL_PX, _BAND_PX = 72, 30
_LABELS_PX, _LABELS_FRAC = 230, 0.33


def memory(document: Document, canvas: Canvas) -> Figure:
    """The chart of ``recommended.memory.gpu``."""
    gpu = document["recommended"]["memory"]["gpu"]
    device = f"device, {gpu['peak_moment']}"
    bars = [(device, gpu["terms"], gpu["device_bytes"])]
    bars += [(m["name"], m["terms"], m["allocated_bytes"]) for m in gpu["moments"] if m["allocated_bytes"]]
    top = 1.02 * max(gpu["capacity_bytes"], *(total for _, _, total in bars)) / GIB
    labels = min(_LABELS_PX, round(_LABELS_FRAC * canvas.px))
    plot = max(120, canvas.px - labels - _TOTAL_PX)
    y = {"field": "moment", "type": "nominal", "sort": None, "axis": axis(None, labelLimit=labels - 10, ticks=False)}
    parts = [part for name, terms, _ in bars for part in _parts(name, terms, plot / top)]
    totals = [{"moment": name, "gib": total / GIB, "label": format_gib(total)} for name, _, total in bars]
    biggest = max(gpu["terms"], key=lambda term: int(term["bytes"]))
    used, capacity = format_gib(gpu["device_bytes"]), format_gib(gpu["capacity_bytes"])
    spec: Spec = {
        "width": plot,
        "height": {"step": _BAND_PX},
        "layer": [
            _bars(parts, top, y, max(2, plot // 120)),
            {
                "data": {"values": [part for part in parts if part["text"]]},
                "mark": {"type": "text", "aria": False, "align": "left", "dx": 5},
                "encoding": {"x": {"field": "from", "type": "quantitative"}, "y": y, "text": {"field": "text"},
                             "color": {"field": "ink", "type": "nominal", "scale": None}},
            },
            {
                "data": {"values": totals},
                "mark": {"type": "text", "align": "left", "aria": False, "x": plot + 6},
                "encoding": {"y": y, "text": {"field": "label"}},
            },
            *rule(gpu["capacity_bytes"] / GIB, "x", f"{capacity} usable"),
        ],
        "resolve": {"scale": {"color": "independent"}},
    }  # fmt: skip
    rows = [(part["moment"], part["category"], part["fitted"], part["bytes"]) for part in parts]
    return Figure(
        name="memory", title="Memory of one GPU by moment of the step", spec=spec, height=_BAND_PX * len(bars) + 90,
        message=f"One GPU needs {used} of {capacity} at its peak, {gpu['peak_moment']}; "
        f"the largest part is {biggest['name']} with {format_gib(biggest['bytes'])}.",
        table=Table(columns=("moment", "category", "fitted", "bytes"), rows=rows),
    )  # fmt: skip


def _bars(parts: list[dict[str, Any]], top: float, y: Spec, columns: int) -> Spec:
    found = [category for category in CATEGORIES if any(part["key"] == category for part in parts)]
    colour = {
        "field": "category", "type": "nominal",
        "scale": {"domain": [c.replace("_", " ") for c in found], "range": [f"@{_VARIABLES.get(c, c)}" for c in found]},
        "legend": {"columns": columns},
    }  # fmt: skip
    return {
        "data": {"values": parts},
        "mark": {"type": "bar", "height": {"band": 0.8}, "stroke": "@bg", "strokeWidth": 1},
        "encoding": {
            "x": {"field": "from", "type": "quantitative", "scale": {"domain": [0, top], "nice": False}, "axis": axis("GiB", tickCount=6)},
            "x2": {"field": "to"}, "y": y, "color": colour,
            "fillOpacity": {"field": "opacity", "type": "quantitative", "scale": None, "legend": None},
        } | described("about"),
    }  # fmt: skip


def _parts(moment: str, terms: Iterable[Document], px_per_gib: float) -> list[dict[str, Any]]:
    """Segments of one bar in the fixed order of categories; within one, fitted figures apart from counted ones."""
    listed, parts, at = list(terms), [], 0
    for category in CATEGORIES:
        for fitted in (False, True):
            size = sum(int(t["bytes"]) for t in listed if t["category"] == category and (t["exactness"] == "fitted") == fitted)
            if size:
                parts.append(_part(moment, (category, fitted), (at, size), px_per_gib))
                at += size
    return parts


def _part(moment: str, kind: tuple[str, bool], span: tuple[int, int], px_per_gib: float) -> dict[str, Any]:
    (category, fitted), (at, size) = kind, span
    word = category.replace("_", " ")
    text = f"{word} {format_gib(size)}"
    texts = [t for t in (text, word, format_gib(size)) if len(t) * CHARACTER_PX + 12 <= size / GIB * px_per_gib]
    return {
        "moment": moment, "key": category, "category": word, "fitted": fitted, "bytes": size, "from": at / GIB, "to": (at + size) / GIB,
        "opacity": 0.5 if fitted else 1, "text": texts[0] if texts else "",
        "ink": "@on-deep" if category == "parameters" and not fitted else "@ink" if fitted else IN_BAR,
        "about": f"{moment}: {text}{', fitted to measurements' if fitted else ''}",
    }  # fmt: skip
