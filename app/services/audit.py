"""Use case: an existing configuration read against its model and GPUs: findings, what it costs as it runs, and the file mended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import yaml

from app import ENGINE_VERSION
from app.audit.corrected import corrected, minimal
from app.audit.finding import Finding
from app.audit.registry import Report, worst_first
from app.audit.rules import audit
from app.audit.subject import Subject
from app.ingest.hub import Hub
from app.services.audit_prediction import Prediction, predict
from app.services.audit_request import AuditRequest
from app.services.audit_running import inner_deepspeed
from app.services.audit_subject import Looked, look_up
from app.services.document import candidate_document

FILENAMES = {"deepspeed": "ds_config.json", "accelerate": "accelerate.yaml", "hf_trainer": "training_args.json", "fsdp": "fsdp_config.json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """An audit with its files.

    Attributes:
        corrected, minimal: text of the file with every finding mended that can be, and of the same without what says the default.
        prediction: what the file costs as it runs, beside our plan.
    """

    looked: Looked
    report: Report
    corrected: Mapping[str, str]
    minimal: Mapping[str, str]
    prediction: Prediction

    def document(self) -> dict[str, Any]:
        """The JSON of the contract."""
        subject, given = self.looked.subject, self.prediction
        return {
            "engine_version": ENGINE_VERSION,
            "kind": subject.kind,
            "launcher": subject.launcher,
            "versions": dict(subject.releases),
            "summary": summary_of(self.report),
            "findings": [_finding(found) for found in self.report.findings],
            "not_checked": [{"id": entry.id, "needs": entry.needs} for entry in self.report.not_checked],
            "predicted": candidate_document(given.candidate) if given.candidate else None,
            "not_predicted": given.why_not,
            "recommended": candidate_document(given.plan.recommended) if given.plan else None,
            "gain": given.gain,
            "assumed": [*self.looked.inferred, *given.assumed],
            "corrected": dict(self.corrected),
            "minimal": dict(self.minimal),
        }


def audited(request: AuditRequest, hub: Hub | None = None) -> Audited:
    """Audit one configuration.

    Raises:
        InvalidRequestError: it is no configuration, or what it is for makes no sense.
        UnavailableError: the hub does not answer, or too many large searches are running.
    """
    looked = look_up(request, hub)
    report = _report(looked.subject)
    mended = _mended(looked.subject, report)
    name, kind = FILENAMES[looked.subject.kind], looked.subject.kind
    least = minimal(mended, looked.subject)
    return Audited(
        looked=looked,
        report=report,
        corrected={name: _text(mended, kind)},
        minimal={name: _text(least, kind)},
        prediction=predict(request, looked.subject, hub),
    )


_ROUNDS = 4
"""What one edit brings up is mended as well: a key that a spelling hid, a device that a stage ignored."""


def _mended(subject: Subject, report: Report) -> Mapping[str, Any]:
    """The file with what fails, is ignored or comes out differently mended; what is slow or large is left to whoever reads."""
    for _ in range(_ROUNDS):
        config = corrected(subject.config, [found for found in report.findings if found.effect in ("fails", "ignored", "changed")])
        if config == subject.config:
            break
        subject = replace(subject, config=config, duplicate_keys=())
        report = _report(subject)
    return subject.config


def _report(subject: Subject) -> Report:
    """The findings of a file, and of DeepSpeed's configuration where the Trainer's arguments hold one."""
    report = audit(subject)
    inner = inner_deepspeed(subject) if subject.kind == "hf_trainer" else None
    if inner is None:
        return report
    more = audit(inner)
    moved = tuple(
        replace(f, path=f"deepspeed.{f.path}".rstrip("."), changes=tuple(replace(c, path=("deepspeed", *c.path)) for c in f.changes))
        for f in more.findings
    )
    return Report(findings=worst_first((*report.findings, *moved)), not_checked=report.not_checked + more.not_checked)


def summary_of(report: Report) -> str:
    """The findings in one sentence."""
    found = {severity: sum(f.severity == severity for f in report.findings) for severity in ("error", "warning", "info")}
    fails = sum(f.effect == "fails" for f in report.findings if f.severity == "error")
    if not report.findings:
        return "Nothing was found: the file does what it says."
    words = [_count(fails, "thing that makes the run fail", "things that make the run fail")] * bool(fails)
    words += [_count(found["error"] - fails, "error", "errors")] * (found["error"] > fails)
    words += [_count(found["warning"], "warning", "warnings")] * bool(found["warning"])
    words += [_count(found["info"], "note", "notes")] * bool(found["info"])
    return f"{', '.join(words)}."


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _finding(found: Finding) -> dict[str, Any]:
    document = {field.name: getattr(found, field.name) for field in fields(Finding) if field.name != "changes"}
    return document | {
        "changes": [{"path": ".".join(c.path), "value": None if c.remove else c.value, "remove": c.remove} for c in found.changes]
    }


def _text(config: Mapping[str, Any], kind: str) -> str:
    if kind == "accelerate":
        return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
