"""Model states of one GPU against the number of ranks, both on logarithmic axes: what each ZeRO stage divides."""

from __future__ import annotations

from typing import Any

from app.domain.traffic.ideal import ideal_states_bytes
from app.domain.units import GIB, format_gib
from app.web.figures.figure import Canvas, Document, Figure, Spec, Table
from app.web.figures.style import axis, described, noted, rule

LINES = {"ddp": ("DDP", [1, 0]), "zero1": ("ZeRO-1", [8, 3]), "zero2": ("ZeRO-2", [4, 3]), "zero3": ("ZeRO-3", [1.5, 2.5])}
_COLOURS = {"ddp": "@overhead", "zero1": "@optimizer", "zero2": "@gradients", "zero3": "@parameters"}
_HELD = ("parameters", "gradients", "optimizer_states", "adapters")
_AXIS_PX, _ENDS_PX, _HEIGHT, _MOST_RANKS = 64, 64, 260, 1024


def states(document: Document, canvas: Canvas) -> Figure:
    """The chart of the textbook's 16 bytes a trained parameter over 1 to at least 1,024 ranks."""
    params, now = document["model"]["trainable_params"], document["ideal"]["states_bytes"]
    ranks = max(1, round(now["ddp"] / now["zero3"])) if now["zero3"] else 1
    axis_ranks = sorted({2**n for n in range(21) if 2**n <= max(_MOST_RANKS, 4 * ranks)} | {ranks})
    table = [(n, ideal_states_bytes(params, n)) for n in axis_ranks]
    points = [_point(key, n, by[key]) for n, by in table for key in LINES if by[key]]
    gpu = document["recommended"]["memory"]["gpu"]
    held = sum(int(t["bytes"]) for t in gpu["terms"] if t["category"] in _HELD)
    mine = {"ranks": ranks, "gib": held / GIB, "bytes": held, "about": f"this plan holds {format_gib(held)} at {ranks:,} ranks"}
    spec: Spec = {
        "width": max(140, canvas.px - _AXIS_PX - _ENDS_PX),
        "height": _HEIGHT,
        "layer": [
            _lines(points),
            {
                "data": {"values": _ends(points)},
                "mark": {"type": "text", "align": "left", "dx": 6, "aria": False},
                "encoding": _at() | {"text": {"field": "line"}},
            },
            *rule(gpu["capacity_bytes"] / GIB, "y", f"{format_gib(gpu['capacity_bytes'])} usable"),
            {
                "data": {"values": [mine]},
                "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 160, "color": "@ink", "opacity": 1, "stroke": "@bg"},
                "encoding": _at() | described("about"),
            },
            *noted([mine | {"label": "this plan"}], _at(), {"align": "left", "dx": 8, "dy": -10}),
        ],
    }  # fmt: skip
    return Figure(
        name="states", title="Model states of one GPU by number of ranks", spec=spec, height=_HEIGHT + 60,
        message=f"At {ranks:,} ranks the textbook states of one GPU are {format_gib(now['ddp'])} under DDP, "
        f"{format_gib(now['zero1'])} under ZeRO-1, {format_gib(now['zero2'])} under ZeRO-2 and {format_gib(now['zero3'])} under ZeRO-3; "
        f"this plan holds {format_gib(held)}.",
        table=Table(columns=("ranks", *(f"{word} bytes" for word, _ in LINES.values())),
                    rows=[(n, *(by[key] for key in LINES)) for n, by in table]),
    )  # fmt: skip


def _lines(points: list[dict[str, Any]]) -> Spec:
    words = [word for word, _ in LINES.values()]
    line = {"field": "line", "type": "nominal"}
    encoding = {
        "x": {"field": "ranks", "type": "quantitative", "scale": {"type": "log", "base": 2, "nice": False},
              "axis": axis("ranks", format=",d", labelOverlap="greedy", tickCount=8)},
        "y": {"field": "gib", "type": "quantitative", "scale": {"type": "log", "nice": False},
              "axis": axis("states of one GPU, GiB", format="~r", values=[10.0**n for n in range(-6, 6)])},
        "color": line | {"scale": {"domain": words, "range": list(_COLOURS.values())}, "legend": None},
        "strokeDash": line | {"scale": {"domain": words, "range": [dash for _, dash in LINES.values()]}, "legend": None},
    }  # fmt: skip
    return {
        "data": {"values": points},
        "mark": {"type": "line", "strokeWidth": 2.5, "point": {"size": 24, "filled": True}},
        "encoding": encoding | described("about"),
    }


def _at() -> Spec:
    return {"x": {"field": "ranks", "type": "quantitative"}, "y": {"field": "gib", "type": "quantitative"}}


def _point(key: str, ranks: int, size: int) -> dict[str, Any]:
    word = LINES[key][0]
    return {"line": word, "ranks": ranks, "bytes": size, "gib": size / GIB, "about": f"{word}, {ranks:,} ranks: {format_gib(size)}"}


def _ends(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last point of each line, where its name is written."""
    return list({point["line"]: point for point in points}.values())
