"""``shardplan catalog``: GPUs, instances and models that a request can name, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.catalog.data import Index
from app.catalog.documents import NAMES, catalog_document, has_words
from app.cli.base import Parser, add_against, client_of
from app.domain.errors import NotFoundError
from app.web.catalog_rows import COLUMNS


def add_catalog(catalog: Parser) -> None:
    """Add the options."""
    catalog.add_argument("kind", choices=tuple(COLUMNS))
    catalog.add_argument("words", nargs="*", help="list what has all of these words in its names")
    catalog.add_argument("--json", action="store_true", help="print every figure, with its sources, as JSON")
    add_against(catalog)
    catalog.set_defaults(run=_catalog)


def _catalog(given: argparse.Namespace) -> int:
    document = _document(given)
    entries = document[given.kind]
    found = [entry for entry in entries if has_words(entry, given.words)]
    if not found:
        raise NotFoundError(_nothing(given.kind, " ".join(given.words), entries))
    if given.json:
        print(orjson.dumps({**document, given.kind: found}, option=orjson.OPT_INDENT_2).decode())
        return 0
    titles, row_of = COLUMNS[given.kind]
    rows = [(row["key"], *row["cells"]) for row in map(row_of, found)]
    print(_table([titles, *rows]))
    return 0


def _document(given: argparse.Namespace) -> Mapping[str, Any]:
    client = client_of(given)
    if client is None:
        return catalog_document(given.kind)
    with client:
        return client.catalog(given.kind).model_dump(mode="json", exclude_none=False, exclude_unset=True)


def _nothing(kind: str, words: str, entries: Sequence[Mapping[str, Any]]) -> str:
    index = Index(kind, entries, key_of=lambda entry: entry["key"], names_of=_names)
    nearest = ", ".join(index.nearest(words))
    return f"none of {len(entries)} {kind} has {words!r} in its names" + (f"; the nearest are {nearest}" if nearest else "")


def _names(entry: Mapping[str, Any]) -> list[str]:
    return [*(entry[field] for field in NAMES if entry.get(field)), *entry.get("aliases", ())]


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Rows under their titles, in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
