"""``shardplan export`` and ``import``: every saved plan as a file, and back."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import IO

from app.cli.base import EXIT_INVALID, Parser, opened
from app.settings import AppSettings
from app.store import migrate
from app.store.transfer import export_lines, import_lines


def add_export(export: Parser) -> None:
    """Add the options of ``export``."""
    export.add_argument("-o", "--output", type=Path, help="file to write, whole or not at all; standard output if left out")
    export.set_defaults(run=lambda given: _export(given.output))


def add_import(load: Parser) -> None:
    """Add the options of ``import``."""
    load.add_argument("file", type=Path, help="what export wrote; - reads standard input")
    load.set_defaults(run=lambda given: _import(given.file))


def _export(output: Path | None) -> int:
    """Write beside the file and put it in place at the end: a file that is there is whole, and only its owner reads it."""
    url = AppSettings().database_url
    if migrate.current(url) is None:
        print("there are no saved plans: SHARDPLAN_DATABASE_URL names a database that was never used", file=sys.stderr)
        return EXIT_INVALID
    if output is None:
        _write_export(url, sys.stdout.buffer)
        return 0
    part = output.with_name(f"{output.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        with part.open("wb") as file:
            _write_export(url, file)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    return 0


def _write_export(url: str, file: IO[bytes]) -> None:
    with opened(url) as database, database.session() as session:
        file.writelines(export_lines(session))


def _import(path: Path) -> int:
    """All of the file or, where a line is wrong, nothing."""
    with contextlib.ExitStack() as stack:
        lines = sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
        url = AppSettings().database_url
        migrate.upgrade(url)
        session = stack.enter_context(stack.enter_context(opened(url)).session(write=True))
        done = import_lines(session, lines)
    told = (f"{name}: {done.added[name]} added, {done.present[name]} there already" for name in done.added)
    print("; ".join(told))
    return 0
