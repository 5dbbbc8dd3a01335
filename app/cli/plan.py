"""``shardplan plan``: one request in, a verdict as the exit code, and files."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
from pydantic import ValidationError

from app.cli.base import EXIT_INVALID, Commands, read
from app.main import hub_of
from app.services.plan import Answer, answer
from app.services.request import PlanRequest
from app.settings import AppSettings
from app.web.validation import field_errors

_EXIT_CODES = {"fits": 0, "tight": 1, "does_not_fit": 2}


def add_to(commands: Commands) -> None:
    """Add the command."""
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


def _plan(spec: Path, outputs: list[Path], *, dialect: str, as_json: bool) -> int:
    try:
        planned = answer(PlanRequest.model_validate(read(spec)), hub_of(AppSettings()))
    except ValidationError as error:
        for problem in field_errors(error.errors(), PlanRequest):
            print(f"{'.'.join(map(str, problem.loc))}: {problem.msg}{'; ' + problem.hint if problem.hint else ''}", file=sys.stderr)
        return EXIT_INVALID
    print(orjson.dumps(planned.document(), option=orjson.OPT_INDENT_2).decode() if as_json else planned.plan.summary)
    return max(_EXIT_CODES[planned.plan.verdict], _write(planned, outputs, dialect))


def _write(planned: Answer, outputs: list[Path], dialect: str) -> int:
    texts = {name: artifact.text for name, artifact in planned.files(dialect).items()}
    for path in outputs:
        if path.name not in texts:
            print(f"{path.name} is not a file of this plan; it has {', '.join(texts) or 'none, since nothing fits'}", file=sys.stderr)
            return EXIT_INVALID
        path.write_text(texts[path.name])
    return 0
