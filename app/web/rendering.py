"""Templates: one environment, everything escaped, undefined names are errors, filters that only format."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app import ENGINE_VERSION
from app.domain.units import format_count, format_gib, format_number
from app.resources import resource_dir
from app.web.assets import drawing_scripts
from app.web.charts import seconds

HEADERS = {"vary": "Accept", "referrer-policy": "same-origin"}
"""A page sends its origin to this server, which tells its own posts from those of other sites."""
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\d[\d,.]*(?:e[+-]?\d+)?|\S)")


@cache
def environment() -> Environment:
    """The template environment of the process."""
    env = Environment(
        loader=FileSystemLoader(resource_dir("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        keep_trailing_newline=False,
    )
    env.filters |= {
        "gib": format_gib,
        "num": format_number,
        "count": format_count,
        "sec": seconds,
        "pct": percent,
        "exact": exact,
        "mathml": math_tokens,
        "words": lambda text: str(text).replace("_", " "),
    }
    env.globals |= {"engine_version": ENGINE_VERSION, "drawing_scripts": drawing_scripts()}
    return env


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
    """A rendered page."""
    state = request.app.state if "app" in request.scope else None
    lists = getattr(state, "list_plans", True)
    around = {"path": request.url.path, "lists": lists, "signed_in": request.scope.get("state", {}).get("key_by_cookie", False)}
    html = environment().get_template(template).render(**around, **context)
    return Response(html, status_code=status, media_type="text/html", headers=HEADERS)


def percent(frac: float) -> str:
    """A share with three significant digits.

    Example:
        >>> percent(0.4625), percent(1.0)
        ('46.2 %', '100 %')
    """
    return f"{format_number(100 * frac)} %"


def exact(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{int(value):,}"


def math_tokens(expression: str) -> list[tuple[str, str]]:
    """MathML elements of a plain formula: names, numbers and operators in their order.

    Example:
        >>> math_tokens("params × 2 / ranks")
        [('mi', 'params'), ('mo', '×'), ('mn', '2'), ('mo', '/'), ('mi', 'ranks')]
    """
    kinds = []
    for text in _TOKEN.findall(expression):
        kind = "mn" if text[0].isdigit() else "mi" if text[0].isalpha() or text[0] == "_" else "mo"
        kinds.append((kind, text.replace("_", " ")))
    return kinds
