"""``shardplan migrate``: bring the database to this version's schema, as a job of its own before the service starts."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from app.cli.base import EXIT_INVALID, Parser
from app.domain.errors import UnavailableError
from app.settings import AppSettings
from app.store import migrate

T = TypeVar("T")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_PAUSE_S = 1.0


def add_migrate(command: Parser) -> None:
    """Add the options."""
    command.epilog = (
        "exit codes: 0 the schema is current, or of a newer version; 3 with --check: it is behind, or it cannot be brought there; "
        "64 the command line or a setting is wrong; 69 the database does not answer"
    )
    command.add_argument("--check", action="store_true", help="change nothing; say whether a migration is needed, with exit code 3 if so")
    command.add_argument(
        "--wait", type=_seconds, default=60.0, metavar="60s", help="longest wait for a database that does not answer (60s); 0 tries once"
    )
    command.set_defaults(run=_migrate)


def _migrate(given: argparse.Namespace) -> int:
    url = AppSettings().database_url
    schema, at = _patiently(lambda: migrate.standing(url), given.wait)
    if schema == "missing":
        print(f"the database says it is at {at}, but its tables are not there; restore a backup", file=sys.stderr)
        return EXIT_INVALID
    if schema == "ahead":
        print(f"the database is at {at}, of a newer version; it is left as it is")
        return 0
    if schema == "current":
        print(f"the database is at {at} already")
        return 0
    there = f"the database is at {at}" if at else "the database is empty"
    if given.check:
        print(f"{there}; this version needs {migrate.head()}: run `shardplan migrate`")
        return EXIT_INVALID
    _patiently(lambda: migrate.upgrade(url), given.wait)
    print(f"migrated from {at or 'an empty database'} to {migrate.current(url)}")
    return 0


def _patiently(act: Callable[[], T], wait_s: float) -> T:
    """Try until the database answers or the time is up."""
    until, told = time.monotonic() + wait_s, False
    while True:
        try:
            return act()
        except UnavailableError as error:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise
            if not told:
                print(f"waiting for the database, {wait_s:g} s at most: {error.detail}", file=sys.stderr)
                told = True
            time.sleep(min(_PAUSE_S, left_s))


def _seconds(text: str) -> float:
    """A time such as 90, 90s or 2m."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds such as 60, 60s, or 2m")
    return float(match[1]) * _UNITS[match[2]]
