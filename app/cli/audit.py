"""``shardplan audit``: an existing configuration read against its model and GPUs; the exit code says whether it fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from app.cli.base import Parser, add_against, client_of, read
from app.configured import hub_of
from app.domain.errors import InvalidRequestError
from app.services.audit import audited
from app.services.audit_request import AuditRequest
from app.settings import AppSettings
from app.web.validation import field_errors

_EXIT_CODES = """exit codes:
  0   nothing makes the run fail (with --strict: no warning either)
  1   warnings, with --strict
  2   something makes the run fail
  3   not valid: the file or the request
  64  the command line or a setting is wrong
  69  the service, or the hub that a model is fetched from, does not answer"""
_PARTS = ("model", "training", "cluster", "constraints", "headroom_frac")


def add_audit(audit: Parser) -> None:
    """Add the options."""
    audit.epilog, audit.formatter_class = _EXIT_CODES, argparse.RawDescriptionHelpFormatter
    audit.add_argument("file", type=Path, help="ds_config.json, accelerate YAML, TrainingArguments or fsdp_config; - reads standard input")
    audit.add_argument("--for", dest="spec", type=Path, metavar="SPEC", help="a PlanRequest whose model, training and cluster it is for")
    audit.add_argument("--kind", choices=("deepspeed", "accelerate", "hf_trainer", "fsdp"), help="what the file is; told from its keys")
    audit.add_argument("--launcher", choices=("deepspeed", "hf_trainer", "accelerate"), help="who starts the job")
    audit.add_argument("--deepspeed", metavar="RELEASE", help="release of DeepSpeed, such as 0.19.8")
    audit.add_argument("-o", "--output", type=Path, help="write the corrected file here")
    audit.add_argument("--strict", action="store_true", help="warnings count as well")
    audit.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    add_against(audit)
    audit.set_defaults(run=_audit)


def _audit(given: argparse.Namespace) -> int:
    body = _body(given)
    client = client_of(given)
    if client is None:
        document = _here(body)
    else:
        with client:
            document = client.audit(body).model_dump(mode="json")
    if given.output:
        given.output.write_text(next(iter(document["corrected"].values())), encoding="utf-8")
    if given.json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(document)
    severities = {found["severity"] for found in document["findings"]}
    return 2 if "error" in severities else 1 if given.strict and "warning" in severities else 0


def _body(given: argparse.Namespace) -> dict[str, Any]:
    text = sys.stdin.read() if str(given.file) == "-" else given.file.read_text(encoding="utf-8")
    body: dict[str, Any] = {"text": text, "kind": given.kind, "launcher": given.launcher}
    if given.deepspeed:
        body["versions"] = {"deepspeed": given.deepspeed}
    if given.spec:
        spec = read(given.spec)
        if not isinstance(spec, Mapping):
            raise InvalidRequestError(f"{given.spec} holds no request", ())
        body |= {part: spec[part] for part in _PARTS if part in spec}
    return body


def _here(body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        request = AuditRequest.model_validate(body)
    except ValidationError as error:
        raise InvalidRequestError("the request is not valid", field_errors(error.errors(), AuditRequest)) from error
    return audited(request, hub_of(AppSettings())).document()


def _print(document: Mapping[str, Any]) -> None:
    print(document["summary"])
    for found in document["findings"]:
        where = f" {found['path']}" if found["path"] else ""
        print(f"{found['severity']}: {found['id']}{where}: {found['message']} {found['fix']}")
