"""Strings of a module that people read, taken from its source: f-strings with a slot for each expression."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

_PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}")
_WORD = re.compile(r"[A-Z][a-z]+(?:[-/][a-z]+)*")
_CODE = re.compile(r"python |engine\.\w+\(|weights = |\{0\} --|%|,|;|<style|var\(|system-ui|app/|Bearer |.*\.(?:pt|py)$")
"""What begins like this is to be copied, or a part of something longer."""
_NAMES = frozenset({"Accept", "Adafactor", "Canvas", "False", "Figure", "Lion", "Muon", "True", "saved plans"})
"""Words that no page shows, or that are names."""
_UNSHOWN = frozenset({"description", "summary", "equation", "source", "examples", "pattern"})
"""Keywords whose strings are for the API's document, or are read by the code."""
_MOST_VARIANTS = 8


def strings(source: str, *, words: bool, raised: bool = False) -> Iterator[str]:
    """Strings of a module that people read: two words in a row.

    Args:
        source: its text.
        words: capitalised words by themselves, too.
        raised: those of errors, too.

    Example:
        >>> sorted(strings("x = 'Heads', 'heads', f'short by {n} in all'", words=True))
        ['Heads', 'short by {0} in all']
    """
    tree = ast.parse(source)
    skipped = set(_unread(tree, raised=raised))
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        for text in map(_whole, _variants(node)):
            bare = re.sub(r"\{\d\}", "", text)
            if _CODE.match(text) or text in _NAMES:
                continue
            if _PROSE.search(bare) or (words and _WORD.fullmatch(text)) or ("{" in text and re.search(r"[a-z]{3,}", bare) and " " in text):
                yield text


def _whole(text: str) -> str:
    """A string without the spaces that join it to others; nothing where it is only a part of a sentence."""
    bare = text.strip()
    return bare if bare == text or bare.endswith(".") else ""


def _unread(tree: ast.AST, *, raised: bool) -> Iterator[int]:
    """Docstrings, parts of f-strings, patterns, and arguments that no page shows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)
        elif isinstance(node, ast.JoinedStr):
            for part in node.values:
                yield id(part)
                if isinstance(part, ast.FormattedValue):
                    yield from (id(n) for n in ast.walk(part.value) if isinstance(part.value, ast.IfExp))
                    yield from (id(n) for n in ast.walk(part.format_spec)) if part.format_spec else ()
        elif isinstance(node, ast.keyword) and node.arg in _UNSHOWN:
            yield from (id(n) for n in ast.walk(node.value))
        elif _is_call(node, ("compile", "Query", "term")) or (isinstance(node, ast.Raise) and not raised):
            yield from (id(n) for n in ast.walk(node))


def _is_call(node: ast.AST, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def _variants(node: ast.Constant | ast.JoinedStr) -> Iterator[str]:
    """The string, once for each choice between two constants that is made inside it."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
        return
    slots: dict[str, str] = {}
    choices = [list(_choices(part, slots)) for part in node.values]
    for _, parts in zip(range(_MOST_VARIANTS), product(*choices), strict=False):
        yield "".join(parts)


def _choices(part: ast.expr, slots: dict[str, str]) -> Iterator[str]:
    if isinstance(part, ast.Constant):
        yield str(part.value)
        return
    value = part.value if isinstance(part, ast.FormattedValue) else part
    options = _constants(value)
    if options:
        yield from options
        return
    yield slots.setdefault(ast.dump(part), f"{{{len(slots)}}}")


def _constants(value: Any) -> list[str]:
    """Texts of ``a if … else b`` where both are constants."""
    if not isinstance(value, ast.IfExp):
        return []
    texts = [n.value for n in (value.body, value.orelse) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return texts if len(texts) == 2 else []
