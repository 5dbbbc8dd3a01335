"""A command line read and obeyed; of all commands only the one that was typed is imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from app import ENGINE_VERSION
from app.cli.base import Parser, UsageError
from app.cli.commands import COMMANDS


def parser_for(typed: Sequence[str]) -> Parser:
    """The parser of a command line: of the command it names all options, of the others the name and what they do."""
    named = next((word for word in typed if not word.startswith("-")), None)
    parser = Parser(prog="shardplan", description="Plan how to shard one training run.")
    parser.add_argument("--version", action="version", version=ENGINE_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, does) in COMMANDS.items():
        command = commands.add_parser(name, help=does)
        if name == named:
            getattr(import_module(f"app.cli.{module}"), f"add_{name}")(command)
    return parser


def run(parser: Parser, typed: Sequence[str]) -> int:
    """Do what was typed; gives the exit code. What went wrong is said on standard error."""
    given = parser.parse_args(typed)
    act: Callable[[argparse.Namespace], int] = given.run
    try:
        code = act(given)
        sys.stdout.flush()
    except UsageError as error:
        parser.error(error.detail)
    except BrokenPipeError:
        raise
    except Exception as error:
        from app.cli.failures import told

        failed = told(error)
        if failed is None:
            raise
        return failed
    return code
