"""``shardplan serve``."""

from __future__ import annotations

import argparse

from app.cli.base import Commands
from app.main import serve


def add_to(commands: Commands) -> None:
    """Add the command."""
    commands.add_parser("serve", help="serve the page and the API").set_defaults(run=_serve)


def _serve(_: argparse.Namespace) -> int:
    serve()
    return 0
