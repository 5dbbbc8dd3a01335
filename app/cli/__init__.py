"""The ``shardplan`` command over the same use cases as the service."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from http import HTTPStatus

import yaml
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from app import ENGINE_VERSION
from app.cli import audit, catalog, data, diagnose, keys, measure, migrate, plan, serve, sweep, worker
from app.cli.base import EXIT_INVALID, EXIT_UNAVAILABLE, EXIT_USAGE, Parser, UsageError, complain
from app.client import AnswerError, ProblemError
from app.domain.errors import ShardplanError, UnavailableError
from app.ingest.hub_errors import MissingExtraError

EXIT_INTERRUPTED, EXIT_READER_GONE = 130, 141
_COMMANDS = (serve, worker, plan, audit, diagnose, sweep, measure, catalog, data, migrate, keys)
"""Modules whose ``add_to`` adds commands, in the order that help lists them."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    The exit code of ``plan`` says fits (0), tight (1), does not fit (2), not valid (3) or a file differs (4); that of ``audit``
    whether the run fails (2) or, strictly, is warned about (1). That of the others says done (0) or not valid (3), and of all a
    wrong command line or setting (64) or a service, database or hub that does not answer (69).
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = given.run
    try:
        code = run(given)
        sys.stdout.flush()
        return code
    except UsageError as error:
        parser.error(error.detail)
    except ShardplanError as error:
        complain(error)
        return _code(error)
    except ValidationError as error:
        print("\n".join(f"SHARDPLAN_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors() if e["loc"]), file=sys.stderr)
        return EXIT_USAGE
    except DBAPIError as error:
        print(f"the database refuses: {str(error.orig).partition(chr(10))[0]}", file=sys.stderr)
        return EXIT_INVALID
    except BrokenPipeError:  # whoever read has heard enough; what is left in the buffer must not fail once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READER_GONE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        print(error, file=sys.stderr)
        return EXIT_INVALID


def _code(error: ShardplanError) -> int:
    """A service that broke or is none did not answer; everything else is to be mended by whoever asked."""
    if isinstance(error, MissingExtraError):
        return EXIT_USAGE
    broken = isinstance(error, ProblemError) and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return EXIT_UNAVAILABLE if broken or isinstance(error, (UnavailableError, AnswerError)) else EXIT_INVALID


def _parser() -> Parser:
    parser = Parser(prog="shardplan", description="Plan how to shard one training run.")
    parser.add_argument("--version", action="version", version=ENGINE_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    for module in _COMMANDS:
        module.add_to(commands)
    return parser
