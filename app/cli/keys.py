"""``shardplan keys``: make, list, rotate and revoke the keys of a private service."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from app.cli.base import Parser, opened
from app.services.keys import SCOPES, IssuedKey, Keys, ended
from app.settings import AppSettings
from app.store import migrate
from app.store.keys import StoredKey

_UNITS = {"d": "days", "h": "hours", "m": "minutes"}
_HEAD = ("ID", "NAME", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "STATE")


def add_keys(command: Parser) -> None:
    """Add its own commands."""
    keys = command.add_subparsers(dest="keys", required=True)
    create = keys.add_parser("create", help="make a key and print it, this once")
    create.add_argument("--name", required=True, help="who it is for")
    create.add_argument("--scope", action="append", required=True, choices=tuple(SCOPES), help="what it may do; give several times")
    create.add_argument("--expires", type=_duration, metavar="90d", help="how long it works (days, hours or minutes); for ever if left out")
    create.set_defaults(run=lambda given: _run(lambda all_keys: _issued(all_keys.create(given.name, given.scope, life=given.expires))))
    keys.add_parser("list", help="show every key without its secret").set_defaults(run=lambda _: _run(_list))
    rotate = keys.add_parser("rotate", help="make a key that follows another, and print it, this once")
    rotate.add_argument("id", help="of the key that is followed")
    rotate.add_argument("--grace", type=_duration, metavar="24h", default=timedelta(hours=24), help="how long the other goes on; 24h")
    rotate.set_defaults(run=lambda given: _run(lambda all_keys: _issued(all_keys.rotate(given.id, grace=given.grace))))
    revoke = keys.add_parser("revoke", help="end a key; services notice within a minute")
    revoke.add_argument("id")
    revoke.set_defaults(run=lambda given: _run(lambda all_keys: all_keys.revoke(given.id)))


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,9})([dhm])|0", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give 90d, 24h or 30m")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found[2] else timedelta()


def _run(work: Callable[[Keys], None]) -> int:
    url = AppSettings().database_url
    migrate.upgrade(url)
    with opened(url) as database:
        work(Keys(database))
    return 0


def _issued(made: IssuedKey) -> None:
    """The key alone goes to standard output, so that a script can keep it."""
    print(made.text)
    key = made.key
    until = f"until {_moment(key.expires_at)}" if key.expires_at else "until it is revoked"
    print(f"{key.id} ({key.name}) may {', '.join(sorted(key.scopes))} {until}; the key is not shown again", file=sys.stderr)


def _list(keys: Keys) -> None:
    rows = [_HEAD, *(_row(key) for key in keys.list())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(key: StoredKey) -> tuple[str, ...]:
    state = (ended(key, datetime.now(UTC)) or "works").removeprefix("was ").split(" at ")[0]
    moments = (_moment(moment) if moment else "never" for moment in (key.expires_at, key.last_used_at))
    return (key.id, key.name, ",".join(sorted(key.scopes)), _moment(key.created_at), *moments, state)


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}Z"
