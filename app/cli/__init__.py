"""The ``shardplan`` command over the same use cases as the service."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import yaml
from pydantic import ValidationError

from app import ENGINE_VERSION
from app.cli import data, keys, plan, serve
from app.cli.base import EXIT_INVALID, EXIT_UNAVAILABLE, EXIT_USAGE, Parser
from app.domain.errors import ShardplanError, UnavailableError

_COMMANDS = (serve, plan, data, keys)
"""Modules whose ``add_to`` adds commands, in the order that help lists them."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    The exit code of ``plan`` says fits (0), tight (1), does not fit (2) or not valid (3). That of the others says done (0) or
    not valid (3), and of all a wrong command line or setting (64) or a database or hub that does not answer (69).
    """
    given = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = given.run
    try:
        return run(given)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except ValidationError as error:
        print("\n".join(f"SHARDPLAN_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors() if e["loc"]), file=sys.stderr)
        return EXIT_USAGE
    except (ShardplanError, OSError, yaml.YAMLError) as error:
        print(error, file=sys.stderr)
        return EXIT_INVALID


def _parser() -> Parser:
    parser = Parser(prog="shardplan", description="Plan how to shard one training run.")
    parser.add_argument("--version", action="version", version=ENGINE_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    for module in _COMMANDS:
        module.add_to(commands)
    return parser
