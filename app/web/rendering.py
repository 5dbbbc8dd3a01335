"""Templates: one environment, everything escaped, undefined names are errors, filters that only format."""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from app import ENGINE_VERSION
from app.domain.units import format_count, format_gib, format_number
from app.resources import resource_dir
from app.web import languages
from app.web.assets import drawing_scripts
from app.web.charts import seconds

HEADERS = {"vary": languages.VARY, "referrer-policy": "same-origin"}
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
        extensions=["jinja2.ext.i18n"],
    )
    env.install_gettext_callables(languages.gettext, languages.ngettext, newstyle=True)  # type: ignore[attr-defined]
    env.filters |= {
        "gib": format_gib,
        "num": format_number,
        "count": format_count,
        "sec": seconds,
        "pct": percent,
        "exact": exact,
        "mathml": math_tokens,
        "words": lambda text: str(text).replace("_", " "),
        "t": _in_words,
        "said": _marked,
    }
    env.globals |= {"engine_version": ENGINE_VERSION, "drawing_scripts": drawing_scripts(), "languages": languages.LANGUAGES.values()}
    env.globals |= {"language": languages.current, "drawn_in": _drawn_in}
    return env


def _drawn_in(*, first: bool = False) -> str:
    """What the address of a drawing ends in, so that its words are the page's."""
    key = languages.current().key
    return "" if key == languages.ENGLISH.key else f"{'?' if first else '&'}{languages.PARAMETER}={key}"


@pass_context
def _in_words(_: Context, text: Any) -> str:
    """The filter ``t``, for attributes and SVG; with a context, so that no constant is put into words when templates are compiled."""
    return languages.in_words(text)


@pass_context
def _marked(_: Context, text: Any) -> Markup:
    """The filter ``said``, for HTML: what is not translated is marked as English."""
    return languages.marked(text)


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
    """A rendered page."""
    state = request.app.state if "app" in request.scope else None
    lists = getattr(state, "list_plans", True)
    around = {"path": request.url.path, "lists": lists, "signed_in": request.scope.get("state", {}).get("key_by_cookie", False)}
    language = languages.language_of(request)
    around["here"] = _here(request)
    with languages.speaking(language):
        html = environment().get_template(template).render(**around, **context)
    response = Response(html, status_code=status, media_type="text/html", headers=HEADERS | {"content-language": language.tag})
    languages.keep(response, request)
    return response


def _here(request: Request) -> str:
    """The page's own address without its language, to come back to in another; empty for what only a post gives."""
    if request.method not in ("GET", "HEAD"):
        return ""
    rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != languages.PARAMETER])
    return f"{request.url.path}?{rest}" if rest else request.url.path


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
