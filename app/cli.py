"""The ``shardplan`` command over the same use cases as the service."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import orjson
import yaml
from pydantic import ValidationError

from app import ENGINE_VERSION
from app.domain.errors import ShardplanError, UnavailableError
from app.main import hub_of, serve
from app.services.plan import Answer, answer
from app.services.request import PlanRequest
from app.settings import AppSettings
from app.store import migrate
from app.store.session import Database
from app.store.transfer import export_lines, import_lines
from app.web.validation import field_errors

_EXIT_CODES = {"fits": 0, "tight": 1, "does_not_fit": 2}
_EXIT_INVALID, _EXIT_USAGE, _EXIT_UNAVAILABLE = 3, 64, 69


class _Parser(argparse.ArgumentParser):
    """Says 64 (EX_USAGE) for a command that was typed wrongly, since 2 says that a plan does not fit."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and how the command goes."""
        self.print_usage(sys.stderr)
        self.exit(_EXIT_USAGE, f"{self.prog}: error: {message}\n")


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
        return _EXIT_UNAVAILABLE
    except ValidationError as error:
        print("\n".join(f"SHARDPLAN_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors() if e["loc"]), file=sys.stderr)
        return _EXIT_USAGE
    except (ShardplanError, OSError, yaml.YAMLError) as error:
        print(error, file=sys.stderr)
        return _EXIT_INVALID


def _parser() -> _Parser:
    parser = _Parser(prog="shardplan", description="Plan how to shard one training run.")
    parser.add_argument("--version", action="version", version=ENGINE_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the page and the API").set_defaults(run=_serve)
    plan = commands.add_parser("plan", help="plan a request from a JSON or YAML file")
    plan.add_argument("spec", type=Path, help="file with a PlanRequest; - reads standard input")
    plan.add_argument(
        "-o", "--output", type=Path, action="append", default=[], help="write the file of this name (ds_config.json, launch.sh, …)"
    )
    plan.add_argument(
        "--dialect", choices=("plain", "hf_auto"), default="plain", help="hf_auto: ds_config.json for the Hugging Face Trainer"
    )
    plan.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    plan.set_defaults(run=lambda given: _plan(given.spec, given.output, dialect=given.dialect, as_json=given.json))
    export = commands.add_parser("export", help="write every saved plan as JSON Lines")
    export.add_argument("-o", "--output", type=Path, help="file to write, whole or not at all; standard output if left out")
    export.set_defaults(run=lambda given: _export(given.output))
    load = commands.add_parser("import", help="add the plans of an export that are not there yet")
    load.add_argument("file", type=Path, help="what export wrote; - reads standard input")
    load.set_defaults(run=lambda given: _import(given.file))
    return parser


def _serve(_: argparse.Namespace) -> int:
    serve()
    return 0


def _export(output: Path | None) -> int:
    """Write beside the file and put it in place at the end: a file that is there is whole, and only its owner reads it."""
    url = AppSettings().database_url
    if migrate.current(url) is None:
        print("there are no saved plans: SHARDPLAN_DATABASE_URL names a database that was never used", file=sys.stderr)
        return _EXIT_INVALID
    if output is None:
        _write_export(url, sys.stdout.buffer)
        return 0
    part = output.with_name(f"{output.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        with part.open("wb") as file:
            _write_export(url, file)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    return 0


def _write_export(url: str, file: IO[bytes]) -> None:
    with _database(url) as database, database.session() as session:
        file.writelines(export_lines(session))


def _import(path: Path) -> int:
    """All of the file or, where a line is wrong, nothing."""
    with contextlib.ExitStack() as stack:
        lines = sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
        url = AppSettings().database_url
        migrate.upgrade(url)
        session = stack.enter_context(stack.enter_context(_database(url)).session(write=True))
        done = import_lines(session, lines)
    told = (f"{name}: {done.added[name]} added, {done.present[name]} there already" for name in done.added)
    print("; ".join(told))
    return 0


@contextlib.contextmanager
def _database(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def _plan(spec: Path, outputs: list[Path], *, dialect: str, as_json: bool) -> int:
    try:
        planned = answer(PlanRequest.model_validate(_read(spec)), hub_of(AppSettings()))
    except ValidationError as error:
        for problem in field_errors(error.errors(), PlanRequest):
            print(f"{'.'.join(map(str, problem.loc))}: {problem.msg}{'; ' + problem.hint if problem.hint else ''}", file=sys.stderr)
        return _EXIT_INVALID
    print(orjson.dumps(planned.document(), option=orjson.OPT_INDENT_2).decode() if as_json else planned.plan.summary)
    return max(_EXIT_CODES[planned.plan.verdict], _write(planned, outputs, dialect))


def _read(spec: Path) -> Any:
    """A request as YAML, of which JSON is a part."""
    return yaml.safe_load(sys.stdin.read() if str(spec) == "-" else spec.read_text())


def _write(planned: Answer, outputs: list[Path], dialect: str) -> int:
    texts = {name: artifact.text for name, artifact in planned.files(dialect).items()}
    for path in outputs:
        if path.name not in texts:
            print(f"{path.name} is not a file of this plan; it has {', '.join(texts) or 'none, since nothing fits'}", file=sys.stderr)
            return _EXIT_INVALID
        path.write_text(texts[path.name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
