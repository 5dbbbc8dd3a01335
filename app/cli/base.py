"""What every command shares: exit codes, the parser, a file of JSON or YAML, a database, a service.

Libraries are imported where they are used: every command imports this module, and few of them need each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from app.domain.errors import FieldError, InvalidRequestError, ShardplanError

if TYPE_CHECKING:
    from app.client import Client
    from app.store.session import Database

EXIT_INVALID, EXIT_DIFFERS, EXIT_USAGE, EXIT_UNAVAILABLE = 3, 4, 64, 69
LINES = (".jsonl", ".ndjson")
"""Endings of files with a request a line."""


class UsageError(ShardplanError):
    """The command line asks for things that do not go together."""


class Parser(argparse.ArgumentParser):
    """Says 64 (EX_USAGE) for a command that was typed wrongly, since 2 says that a plan does not fit."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and how the command goes."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def read(spec: Path) -> Any:
    """What a file, or standard input for ``-``, holds as JSON or, if it is none, as YAML.

    JSON is read as such, since YAML 1.1 takes its ``1e-05`` for text.
    """
    text = sys.stdin.read() if str(spec) == "-" else spec.read_text(encoding="utf-8")
    try:
        with contextlib.suppress(ValueError):
            return json.loads(text)
        import yaml

        return yaml.safe_load(text)
    except RecursionError:
        raise InvalidRequestError(f"{spec} is nested too deeply to be a request") from None


def complain(error: ShardplanError) -> None:
    """Print an error to standard error: a line for each field at fault, or what is wrong altogether."""
    listed = [f"{_field(found)}{found.msg}{'; ' + found.hint if found.hint else ''}" for found in error.errors]
    print("\n".join(listed) or error.detail, file=sys.stderr)


def _field(error: FieldError) -> str:
    return f"{'.'.join(map(str, error.loc))}: " if error.loc else ""


def add_against(command: argparse.ArgumentParser) -> None:
    """Add the option that has a running service answer."""
    command.add_argument(
        "--against",
        metavar="URL",
        default=os.environ.get("SHARDPLAN_URL", ""),
        help="ask the service at this address instead of planning here; SHARDPLAN_URL if left out, '' for here. "
        "The key of SHARDPLAN_API_KEY goes along",
    )


def client_of(given: argparse.Namespace) -> Client | None:
    """A client of the service that ``--against`` names; None where the answer is made here."""
    if not given.against:
        return None
    from app.client import Client, Retry

    return Client(given.against, os.environ.get("SHARDPLAN_API_KEY") or None, retry=Retry(on_wait=_told))


def _told(why: ShardplanError, seconds: float) -> None:
    print(f"{why.detail}; asking again in {seconds:.0f} s", file=sys.stderr)


@contextlib.contextmanager
def opened(url: str) -> Iterator[Database]:
    """A database for the length of a command."""
    from app.store.session import Database

    database = Database(url)
    try:
        yield database
    finally:
        database.close()
