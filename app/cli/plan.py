"""``shardplan plan``: one request in, a verdict as the exit code, and files; planned here or by a running service."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from app.cli.base import EXIT_DIFFERS, Parser, UsageError, add_against, client_of, read
from app.cli.committed import difference
from app.configured import hub_of
from app.domain.errors import InvalidRequestError
from app.services.plan import answer
from app.services.request import PlanRequest
from app.settings import AppSettings
from app.web.validation import field_errors

if TYPE_CHECKING:
    from app.client import Client

_CODES = {"fits": 0, "tight": 1, "does_not_fit": 2}
_EXIT_CODES = """exit codes:
  0   fits (with --require tight: or tight)
  1   tight
  2   does not fit
  3   not valid: the request, a file or its name
  4   a file of --check differs from what is emitted now
  64  the command line or a setting is wrong
  69  the service, or the hub that a model is fetched from, does not answer"""
_SAVE_ONLY = ("name", "note", "idempotency_key")


def add_plan(plan: Parser) -> None:
    """Add the options."""
    plan.epilog, plan.formatter_class = _EXIT_CODES, argparse.RawDescriptionHelpFormatter
    plan.add_argument("spec", type=Path, help="file with a PlanRequest; - reads standard input")
    plan.add_argument(
        "-o", "--output", type=Path, action="append", default=[], help="write the file of this name (ds_config.json, launch.sh, …)"
    )
    plan.add_argument("--all-into", type=Path, metavar="DIR", help="write every file of the plan into this folder")
    plan.add_argument(
        "--check", type=Path, action="append", default=[], metavar="FILE",
        help="compare this file with the one of its name that is emitted now, and print what differs",
    )  # fmt: skip
    plan.add_argument(
        "--require", choices=("fits", "tight"), default="fits", help="what is good enough for exit code 0: fits, or tight as well"
    )
    plan.add_argument(
        "--dialect", choices=("plain", "hf_auto"), default="plain", help="hf_auto: ds_config.json for the Hugging Face Trainer"
    )
    plan.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    add_against(plan)
    plan.add_argument("--save", action="store_true", help="keep the plan in the service of --against, and print its address")
    plan.add_argument("--name", help="what the saved plan is called")
    plan.add_argument("--note", help="words kept with it")
    plan.add_argument("--idempotency-key", metavar="KEY", help="saves under the same key, such as a commit's, keep one plan")
    plan.set_defaults(run=_plan)


def _plan(given: argparse.Namespace) -> int:
    document = _answered(given)
    verdict: str = document["verdict"]
    if verdict == "does_not_fit":
        if given.output or given.check or given.all_into:
            print("nothing fits, so there is no file to write or to compare", file=sys.stderr)
        return _CODES[verdict]
    texts = _files(document, given.dialect)
    _refuse_unknown(given, texts)
    committed = {path: path.read_text(encoding="utf-8") for path in given.check}
    differing = _compared(committed, texts, quiet=given.json)
    _write(given, texts)
    good_enough = verdict == "tight" and given.require == "tight"
    return max(0 if good_enough else _CODES[verdict], differing)


def _answered(given: argparse.Namespace) -> dict[str, Any]:
    """The plan's document, which standard output gets whole or, for people, as its summary."""
    _refuse_contradictions(given)
    spec = read(given.spec)
    client = client_of(given)
    if client is None:
        document = _planned_here(spec)
    else:
        with client:
            document = _planned_there(spec, client, given)
    if given.json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(document["summary"])
        if given.save and client is not None:
            print(f"{client.url}{document['links']['self']}")
    if given.save and document.get("edit_token"):
        print(f"the token that deletes it, which is shown this once: {document['edit_token']}", file=sys.stderr)
    return document


def _refuse_contradictions(given: argparse.Namespace) -> None:
    if given.save and not given.against:
        raise UsageError("--save needs a service to keep the plan: give --against URL")
    extra = [f"--{name.replace('_', '-')}" for name in _SAVE_ONLY if getattr(given, name) is not None]
    if extra and not given.save:
        raise UsageError(f"{' and '.join(extra)}: only with --save, for the plan that is saved")


def _planned_here(spec: Any) -> dict[str, Any]:
    try:
        request = PlanRequest.model_validate(spec)
    except ValidationError as error:
        raise InvalidRequestError("the request is not valid", field_errors(error.errors(), PlanRequest)) from error
    return answer(request, hub_of(AppSettings())).document()


def _planned_there(spec: Any, client: Client, given: argparse.Namespace) -> dict[str, Any]:
    """The request goes as it is, so that the service's own version judges it."""
    if not isinstance(spec, Mapping):
        return _planned_here(spec)  # refused in the same words
    if not given.save:
        return client.plan(spec).model_dump(mode="json")
    saved = client.save(spec, given.name or "", given.note or "", idempotency_key=given.idempotency_key)
    return saved.model_dump(mode="json")


def _files(document: Mapping[str, Any], dialect: str) -> dict[str, str]:
    """Every file by name; what both dialects have is of the one asked for."""
    plain: dict[str, str] = document["files"]
    trainer: dict[str, str] = document["dialects"].get("hf_auto", {})
    return plain | trainer if dialect == "hf_auto" else trainer | plain


def _refuse_unknown(given: argparse.Namespace, texts: Mapping[str, str]) -> None:
    """Before anything is written."""
    if given.all_into and not texts:
        raise InvalidRequestError("this plan has no files; --json says why, under warnings")
    for path in (*given.output, *given.check):
        if path.name not in texts:
            raise InvalidRequestError(f"{path.name} is not a file of this plan; it has {', '.join(texts) or 'none'}")


def _compared(committed: Mapping[Path, str], texts: Mapping[str, str], *, quiet: bool) -> int:
    """Print what differs: to standard output, or where that is the plan's JSON, to standard error."""
    found = [difference(text, texts[path.name], str(path)) for path, text in committed.items()]
    for diff in filter(None, found):
        print(diff, file=sys.stderr if quiet else sys.stdout)
    return EXIT_DIFFERS if any(found) else 0


def _write(given: argparse.Namespace, texts: Mapping[str, str]) -> None:
    for path in given.output:
        path.write_text(texts[path.name], encoding="utf-8")
    if given.all_into:
        given.all_into.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (given.all_into / name).write_text(text, encoding="utf-8")
