"""What ended a command, in words and as an exit code; imported once something has, since it knows every library that fails."""

from __future__ import annotations

import sys
from http import HTTPStatus

import yaml
from pydantic import ValidationError

from app.cli.base import EXIT_INVALID, EXIT_UNAVAILABLE, EXIT_USAGE, complain
from app.client.errors import AnswerError, ProblemError
from app.domain.errors import ShardplanError, UnavailableError
from app.ingest.hub_errors import MissingExtraError


def told(error: Exception) -> int | None:
    """Say it on standard error, and give the exit code; None for what is a mistake of ours."""
    if isinstance(error, ShardplanError):
        complain(error)
        return _code(error)
    if isinstance(error, ValidationError):
        print("\n".join(f"SHARDPLAN_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors() if e["loc"]), file=sys.stderr)
        return EXIT_USAGE
    if isinstance(error, (OSError, UnicodeDecodeError, yaml.YAMLError)):
        print(error, file=sys.stderr)
        return EXIT_INVALID
    return _refused(error)


def _refused(error: Exception) -> int | None:
    """The same, for what a database says."""
    from sqlalchemy.exc import DBAPIError  # last, since only the commands that need it have it loaded by now

    if not isinstance(error, DBAPIError):
        return None
    print(f"the database refuses: {str(error.orig).partition(chr(10))[0]}", file=sys.stderr)
    return EXIT_INVALID


def _code(error: ShardplanError) -> int:
    """A service that broke or is none did not answer; everything else is to be mended by whoever asked."""
    if isinstance(error, MissingExtraError):
        return EXIT_USAGE
    broken = isinstance(error, ProblemError) and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return EXIT_UNAVAILABLE if broken or isinstance(error, (UnavailableError, AnswerError)) else EXIT_INVALID
