"""Colours and type of the charts. Colours are those of the page: read from its stylesheet, one source for both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from app.resources import resource_dir
from app.web.figures.figure import Figure, Spec

Theme = Literal["light", "dark", "auto"]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arimo, sans-serif'
IN_BAR = "#101316"
"""Text on a coloured segment, in both themes."""
CHARACTER_PX = 6.4
"""Mean width of a character of 12 px text."""

_COLOUR = re.compile(r"--([a-z-]+):\s*(#[0-9a-fA-F]{3,6})\b")


@cache
def palette(theme: Literal["light", "dark"]) -> Mapping[str, str]:
    """Colours of the stylesheet by name; the dark ones are those that its dark scheme sets anew."""
    css = (resource_dir("static") / "app.css").read_text(encoding="utf-8")
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    found = dict(_COLOUR.findall(light))
    return found if theme == "light" else found | dict(_COLOUR.findall(dark.split("@media", 1)[0]))


def themed(figure: Figure, theme: Theme) -> Spec:
    """The specification with its colours put in.

    ``auto`` names them as CSS variables with the light colour behind, so that one drawing follows the page's scheme; it has neither
    ground nor title, which the page has. The others stand alone.
    """
    named = figure.spec | {"description": figure.message, "config": _config()}
    if theme == "auto":
        colours = {name: f"var(--{name}, {value})" for name, value in palette("light").items()}
        return _coloured(named | {"background": "transparent"}, colours)
    named |= {"title": {"text": figure.title, "anchor": "start"}, "background": "@bg"}
    return _coloured(named, palette(theme))


def variables() -> str:
    """A style element for a drawing with CSS variables: its colours in both schemes."""
    blocks = [";".join(f"--{name}:{value}" for name, value in palette(theme).items()) for theme in ("light", "dark")]
    return f"<style>:root{{{blocks[0]}}}@media (prefers-color-scheme:dark){{:root{{{blocks[1]}}}}}</style>"


def axis(title: str | None, **more: Any) -> Spec:
    """An axis with few, quiet lines."""
    return {"title": title, "labelFlush": False} | more


def described(parts: str) -> Spec:
    """The channel that names a mark to those who do not see it, and shows on pointing at it."""
    return {"description": {"field": parts}, "tooltip": {"field": parts}}


def rule(at: float, channel: str, label: str, *, align: str = "right") -> list[Spec]:
    """A labelled dashed line across a chart: a limit. Text that is aligned right stands left of an upright line."""
    place = {channel: {"field": "at", "type": "quantitative"}}
    away = -5 if align == "right" else 5
    if channel == "x":
        where = {"align": align, "dx": away, "y": -8}
    else:
        where = {"align": align, "dx": away, "dy": -8, "x": "width" if align == "right" else 0}
    values = [{"at": at, "label": label}]
    mark = {"type": "rule", "color": "@ink", "strokeWidth": 1.5, "strokeDash": [4, 2]}
    return [{"data": {"values": values}, "mark": mark, "encoding": place | described("label")}, *noted(values, place, where)]


def noted(values: list[dict[str, Any]], place: Spec, where: Spec) -> list[Spec]:
    """Bold text at a place, in the field ``label``, with a ground behind it that keeps it apart from lines it crosses."""
    text = {"type": "text", "color": "@ink", "fontWeight": 600, "aria": False} | where
    encoding = place | {"text": {"field": "label"}}
    ground = text | {"stroke": "@bg", "strokeWidth": 4, "color": "@bg", "opacity": 0.85}
    return [{"data": {"values": values}, "mark": mark, "encoding": encoding} for mark in (ground, text)]


def _config() -> Spec:
    quiet = {"labelColor": "@soft", "titleColor": "@soft", "domainColor": "@strong-line", "tickColor": "@strong-line", "gridColor": "@line"}
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 400}
    return {
        "font": FONT,
        "view": {"stroke": None},
        "axis": quiet | text | {"gridDash": [1, 0]},
        "legend": {"labelColor": "@ink", "labelFontSize": 12, "title": None, "orient": "top", "symbolSize": 110},
        "title": {"color": "@ink", "fontSize": 14, "fontWeight": 600, "offset": 12},
        "text": {"color": "@ink", "fontSize": 12},
    }


def _coloured(node: Spec, colours: Mapping[str, str]) -> Spec:
    """A copy with ``@name`` replaced wherever it is a whole value."""
    return {key: _replaced(value, colours) for key, value in node.items()}


def _replaced(node: Any, colours: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return _coloured(node, colours)
    if isinstance(node, (list, tuple)):
        return [_replaced(value, colours) for value in node]
    if isinstance(node, str) and node.startswith("@"):
        return colours[node[1:]]
    return node
