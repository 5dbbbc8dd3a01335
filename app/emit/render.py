"""Turning templates into text: the one place where a value becomes a Python, shell or comment token.

Templates read as the language they produce: ``#% if`` lines are comments to Python and shell, ``<< value >>`` is filled in.
No user string reaches a file except through ``py`` (a Python literal), ``sh`` (a quoted shell word) or ``comment``.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

COMMENT_CHARS, COMMENT_LINES = 100, 6
TEMPLATES = Path(__file__).parent / "templates"
INCLUDE_LINE = re.compile(r'^#% include "([a-z0-9_.]+)"\n', re.MULTILINE)
STATEMENT_LINE = re.compile(r"^ *#% (.*)$", re.MULTILINE)


def comment(value: object) -> str:
    """One printable line: no newline, control character or text direction mark can end or disguise a comment."""
    text = _printable(value)
    return text if len(text) <= COMMENT_CHARS else text[: COMMENT_CHARS - 1] + "…"


def comment_lines(value: object) -> list[str]:
    """The same over as many lines as it takes, further ones indented; what no plan is as long as is cut."""
    text = _printable(value)
    if len(text) <= COMMENT_CHARS:
        return [text] if text else []
    lines = wrap(text, COMMENT_CHARS, subsequent_indent="  ", break_on_hyphens=False)
    return lines if len(lines) <= COMMENT_LINES else [*lines[: COMMENT_LINES - 1], comment(lines[COMMENT_LINES - 1] + "…" * COMMENT_CHARS)]


def _printable(value: object) -> str:
    text = str(value)
    if not text.isprintable():
        text = "".join(ch if ch.isprintable() else " " for ch in text)
    return " ".join(text.split())


def literal(value: object) -> str:
    """A Python literal, with double quotes where that needs no escape."""
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, set):
        return "{" + ", ".join(map(literal, sorted(value))) + "}" if value else "set()"
    return repr(value)


def shell_word(value: object) -> str:
    """One shell word, whatever the text; control characters become spaces first, for they have no place in a name."""
    return shlex.quote("".join(ch if ch.isprintable() else " " for ch in str(value)))


def render(template: str, **values: Any) -> str:
    """Fill in a template of app/emit/templates; an unknown name is an error, never an empty string."""
    return _environment().get_template(template).render(**values)


def _source(name: str) -> str:
    # Included files are put in place here, once, rather than by Jinja at every rendering.
    text = INCLUDE_LINE.sub(lambda found: _source(found[1]), (TEMPLATES / name).read_text(encoding="utf-8"))
    # Jinja's own line statements also swallow the blank lines that follow them.
    return STATEMENT_LINE.sub(r"<% \1 %>", text)


@cache
def _environment() -> Environment:
    # Autoescaping is for HTML; here every value passes one of the three filters instead.
    env = Environment(  # nosec B701
        loader=FunctionLoader(_source),
        autoescape=False,  # noqa: S701
        undefined=StrictUndefined,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(py=literal, sh=shell_word, comment=comment)
    return env
