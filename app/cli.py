"""The ``shardplan`` command over the same use cases as the service."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from app import ENGINE_VERSION
from app.domain.errors import ShardplanError
from app.main import hub_of, serve
from app.services.plan import Answer, answer
from app.services.request import PlanRequest
from app.settings import AppSettings
from app.web.validation import field_errors

_EXIT_CODES = {"fits": 0, "tight": 1, "does_not_fit": 2}
_EXIT_INVALID = 3


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code of ``plan`` says fits (0), tight (1), does not fit (2) or not valid (3)."""
    parser = argparse.ArgumentParser(prog="shardplan", description="Plan how to shard one training run.")
    parser.add_argument("--version", action="version", version=ENGINE_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the page and the API")
    plan = commands.add_parser("plan", help="plan a request from a JSON or YAML file")
    plan.add_argument("spec", type=Path, help="file with a PlanRequest; - reads standard input")
    plan.add_argument(
        "-o", "--output", type=Path, action="append", default=[], help="write the file of this name (ds_config.json, launch.sh, …)"
    )
    plan.add_argument(
        "--dialect", choices=("plain", "hf_auto"), default="plain", help="hf_auto: ds_config.json for the Hugging Face Trainer"
    )
    plan.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    given = parser.parse_args(arguments)
    if given.command == "serve":
        serve()
        return 0
    return _plan(given.spec, given.output, dialect=given.dialect, as_json=given.json)


def _plan(spec: Path, outputs: list[Path], *, dialect: str, as_json: bool) -> int:
    try:
        planned = answer(PlanRequest.model_validate(_read(spec)), hub_of(AppSettings()))
    except ValidationError as error:
        for problem in field_errors(error.errors(), PlanRequest):
            print(f"{'.'.join(map(str, problem.loc))}: {problem.msg}{'; ' + problem.hint if problem.hint else ''}", file=sys.stderr)
        return _EXIT_INVALID
    except (ShardplanError, OSError, yaml.YAMLError) as error:
        print(error, file=sys.stderr)
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
