"""``shardplan probe`` and ``measure``: a snippet that measures a run, and what it measured sent to the plan that was run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from app import ENGINE_VERSION
from app.cli.base import Parser, UsageError, add_against, client_of, read
from app.domain.errors import InvalidRequestError
from app.emit.probe import probe_snippet


def add_probe(probe: Parser) -> None:
    """Add the options of ``probe``."""
    probe.add_argument("--plan-id", default="", help="of the saved plan that is run")
    probe.add_argument("--url", default="", help="of the service that keeps the plan")
    probe.set_defaults(run=_probe)


def add_measure(measure: Parser) -> None:
    """Add the options of ``measure``."""
    measure.add_argument("plan_id", help="of the saved plan that was run")
    measure.add_argument("file", type=Path, help="what the snippet of probe wrote; - reads standard input")
    measure.add_argument("--idempotency-key", metavar="KEY", help="sent twice under the same key, a run is kept once")
    add_against(measure)
    measure.set_defaults(run=_measure)


def _probe(given: argparse.Namespace) -> int:
    print(probe_snippet(given.plan_id, given.url, ENGINE_VERSION).text, end="")
    return 0


def _measure(given: argparse.Namespace) -> int:
    client = client_of(given)
    if client is None:
        raise UsageError("measure needs the service that keeps the plan: give --against URL")
    document = read(given.file)
    if not isinstance(document, Mapping):
        raise InvalidRequestError(f"{given.file} holds no JSON object; give what the snippet of `shardplan probe` printed")
    with client:
        kept = client.measure(given.plan_id, document, idempotency_key=given.idempotency_key)
        said = client.measurements(given.plan_id).calibration.says
    errors = {"peak": kept.error_frac["peak_bytes"], "step": kept.error_frac["step_s"]}
    told = [f"the {name} was predicted {100 * error:+.1f} % off" for name, error in errors.items() if error is not None]
    print("; ".join([f"kept as {kept.id}", *told, said]))
    return 0
