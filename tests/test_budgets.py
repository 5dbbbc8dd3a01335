"""The size budgets of the code: small files, small functions, few arguments, no shortcuts.

A function is counted from its ``def`` to its end without its docstring; decorators and the docstring explain, they do
not add to what must be kept in mind.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE, MEDIAN_FILE, MAX_FUNCTION, MAX_ARGUMENTS, MAX_CLASS, MAX_TEMPLATE, MAX_JAVASCRIPT = (
    400,
    120,
    50,
    6,
    150,
    150,
    200,
)

SOURCES = sorted((ROOT / "app").rglob("*.py"))
PYTHON = sorted(path for folder in ("app", "bench", "migrations", "tests") for path in (ROOT / folder).rglob("*.py"))
PRODUCT = [path for path in PYTHON if path.relative_to(ROOT).parts[0] != "tests"]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...], paths: list[Path] = SOURCES) -> Iterator[tuple[str, ast.AST]]:
    """Every node of a kind with where it stands."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield f"{named(path)}:{getattr(node, 'lineno', 0)} {getattr(node, 'name', '')}", node


def extent(node: ast.AST) -> int:
    """Lines of a node from its first to its last."""
    return (getattr(node, "end_lineno", None) or 0) - int(getattr(node, "lineno", 0)) + 1


def body_lines(function: ast.AST) -> int:
    """Lines of a function without its docstring."""
    assert isinstance(function, Function)
    docstring = extent(function.body[0]) if ast.get_docstring(function) is not None else 0
    return extent(function) - docstring


def arguments(function: ast.AST) -> int:
    """Arguments a caller has to know; ``self`` and ``cls`` are not among them."""
    assert isinstance(function, Function)
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return len([arg for arg in every if arg.arg not in ("self", "cls")])


def test_there_is_something_to_measure() -> None:
    """A budget over nothing would always hold."""
    assert len(SOURCES) > 20
    assert len(list(nodes((ast.FunctionDef, ast.AsyncFunctionDef), SOURCES))) > 100


def test_files_are_short() -> None:
    """At most 400 lines each, half of them at most 120."""
    assert {named(path): lines(path) for path in PYTHON if lines(path) > MAX_FILE} == {}
    assert statistics.median(lines(path) for path in SOURCES) <= MEDIAN_FILE


def test_functions_are_short() -> None:
    """At most 50 lines each."""
    found = nodes((ast.FunctionDef, ast.AsyncFunctionDef), PRODUCT)
    assert {where: body_lines(node) for where, node in found if body_lines(node) > MAX_FUNCTION} == {}


def test_functions_take_few_arguments() -> None:
    """At most 6; what belongs together is bundled."""
    found = nodes((ast.FunctionDef, ast.AsyncFunctionDef), PRODUCT)
    assert {where: arguments(node) for where, node in found if arguments(node) > MAX_ARGUMENTS} == {}


def test_classes_are_short() -> None:
    """At most 150 lines each."""
    found = nodes(ast.ClassDef, PRODUCT)
    assert {where: extent(node) for where, node in found if extent(node) > MAX_CLASS} == {}


def test_no_bare_except() -> None:
    """An exception that is caught is named."""
    found = nodes(ast.ExceptHandler, PYTHON)
    assert [where for where, node in found if isinstance(node, ast.ExceptHandler) and node.type is None] == []


def test_no_assert_in_the_product() -> None:
    """Input is checked with errors for people, and ``python -O`` changes nothing."""
    assert [where for where, _ in nodes(ast.Assert, SOURCES)] == []


def test_templates_are_short() -> None:
    """At most 150 lines each."""
    templates = [path for path in (ROOT / "templates").rglob("*") if path.is_file()]
    assert {named(path): lines(path) for path in templates if lines(path) > MAX_TEMPLATE} == {}


def test_there_is_little_javascript() -> None:
    """At most 200 lines of our own; pinned files of others lie in static/vendor."""
    own = [path for path in (ROOT / "static").rglob("*.js") if "vendor" not in path.relative_to(ROOT / "static").parts]
    assert sum(lines(path) for path in own) <= MAX_JAVASCRIPT


@pytest.mark.parametrize("folder", ["app", "bench", "migrations", "templates", "static", "docs"])
def test_nothing_is_left_to_do(folder: str) -> None:
    """No marker of unfinished work."""
    marker = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
    found = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".html", ".js", ".css", ".md")]
    own = [path for path in found if "vendor" not in path.parts]
    assert [named(path) for path in own if marker.search(path.read_text(encoding="utf-8"))] == []
