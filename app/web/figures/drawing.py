"""Specifications to SVG and PNG, by vl-convert: a browser engine inside the process, started at the first drawing.

It takes half a second and about 100 MB to start and some 50 ms for a drawing, so it is loaded when it is wanted, drawings are kept,
and one is made at a time.
"""

from __future__ import annotations

from functools import lru_cache
from html import escape

from app.services.turns import Turns
from app.web.figures.style import variables

_TURNS = Turns(1)
_KEPT = 128
_SCALE = 2.0
"""Pixels of a PNG per CSS pixel."""


@lru_cache(maxsize=_KEPT)
def svg(spec: str, title: str, *, variable: bool) -> str:
    """A drawing as SVG.

    Args:
        spec: Vega-Lite as JSON.
        title: what it says, for those who do not see it.
        variable: its colours are CSS variables, which the drawing then brings along for both schemes.
    """
    from vl_convert import vegalite_to_svg

    with _TURNS.taken():
        drawn: str = vegalite_to_svg(spec, allowed_base_urls=[])
    head, end, rest = drawn.partition(">")
    return f"{head}{end}<title>{escape(title)}</title>{variables() if variable else ''}{rest}"


@lru_cache(maxsize=_KEPT // 4)
def png(spec: str) -> bytes:
    """A drawing as PNG, at twice its size in CSS pixels."""
    from vl_convert import vegalite_to_png

    with _TURNS.taken():
        drawn: bytes = vegalite_to_png(spec, scale=_SCALE, allowed_base_urls=[])
    return drawn
