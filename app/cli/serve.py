"""``shardplan serve``."""

from __future__ import annotations

import argparse

from app.cli.base import Parser
from app.main import serve


def add_serve(command: Parser) -> None:
    """It has no options; settings say all."""
    command.set_defaults(run=_serve)


def _serve(_: argparse.Namespace) -> int:
    serve()
    return 0
