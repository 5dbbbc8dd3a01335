"""``shardplan diagnose``: a log in, why the run failed or was slow out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from app.cli.base import Parser, UsageError, add_against, client_of, read
from app.configured import hub_of
from app.domain.errors import InvalidRequestError
from app.domain.units import format_gib
from app.ingest.logs import MAX_CHARACTERS
from app.services.diagnose.answer import diagnose
from app.services.diagnose.asked import DiagnoseIn
from app.settings import AppSettings
from app.web.validation import field_errors


def add_diagnose(command: Parser) -> None:
    """Add the options."""
    command.add_argument("log", type=Path, help="file with the log, of which the end is read; - reads standard input")
    command.add_argument("--request", type=Path, metavar="SPEC", help="file with a PlanRequest, of which parts may be missing")
    command.add_argument("--step-s", type=float, metavar="S", help="measured seconds of one optimizer step")
    command.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    add_against(command)
    command.set_defaults(run=_diagnose)


def _diagnose(given: argparse.Namespace) -> int:
    if str(given.log) == "-" and given.request is not None and str(given.request) == "-":
        raise UsageError("log and --request are both standard input; give one of them as a file")
    text = sys.stdin.read() if str(given.log) == "-" else given.log.read_text(encoding="utf-8", errors="replace")
    spec = read(given.request) if given.request else None
    document = _answer(text[-MAX_CHARACTERS:], spec, given)
    if given.json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print("\n".join(_lines(document)))
    return 0


def _answer(text: str, spec: Any, given: argparse.Namespace) -> Mapping[str, Any]:
    client = client_of(given)
    if client is not None and (spec is None or isinstance(spec, Mapping)):
        with client:
            return client.diagnose(text, request=spec, step_s=given.step_s).model_dump(mode="json")
    measured = {} if given.step_s is None else {"step_s": given.step_s}
    try:
        question = DiagnoseIn.model_validate({"text": text, "measured": measured, "request": spec})
    except ValidationError as error:
        raise InvalidRequestError("the question is not valid", field_errors(error.errors(), DiagnoseIn)) from error
    return diagnose(question, hub_of(AppSettings())).document()


def _lines(document: Mapping[str, Any]) -> list[str]:
    """The answer to be read in a terminal."""
    lines = [document["cause"]]
    tensor = document["tensor"]
    if tensor:
        size = f" ({format_gib(tensor['bytes'])})" if tensor["bytes"] else ""
        lines.append(f"tensor: {tensor['name']}{size}: {tensor['arithmetic']}")
    lines += document["notes"]
    for title, rows in (
        ("what helps, the cheapest that is enough first", [_remedy(remedy) for remedy in document["remedies"]]),
        ("what would not help", document["would_not_help"]),
        ("what is missing", document["missing"]),
    ):
        lines += ["", f"{title}:", *(f"  {row}" for row in rows)] if rows else []
    return lines


def _remedy(remedy: Mapping[str, Any]) -> str:
    frees = "" if remedy["frees_bytes"] is None else f", frees {format_gib(remedy['frees_bytes'])}"
    step = "" if remedy["step_s_change"] is None else f", step {remedy['step_s_change']:+.3g} s"
    return f"{'enough' if remedy['enough'] else 'not enough'}: {remedy['label']}{frees}{step}"
