"""What every command shares: exit codes, the parser, a file of JSON or YAML, a database."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import yaml

from app.store.session import Database

EXIT_INVALID, EXIT_USAGE, EXIT_UNAVAILABLE = 3, 64, 69

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""What ``add_subparsers`` gives: commands are added to it."""


class Parser(argparse.ArgumentParser):
    """Says 64 (EX_USAGE) for a command that was typed wrongly, since 2 says that a plan does not fit."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and how the command goes."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def read(spec: Path) -> Any:
    """What a file, or standard input for ``-``, holds as YAML, of which JSON is a part."""
    return yaml.safe_load(sys.stdin.read() if str(spec) == "-" else spec.read_text())


@contextlib.contextmanager
def opened(url: str) -> Iterator[Database]:
    """A database for the length of a command."""
    database = Database(url)
    try:
        yield database
    finally:
        database.close()
