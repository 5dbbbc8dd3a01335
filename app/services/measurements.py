"""Use cases of measurements: keep what a run really took, list it beside what was predicted, take it away."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from app.domain.errors import ConflictError, InvalidRequestError
from app.domain.units import format_gib, format_number
from app.services.calibrate import Calibrator
from app.services.digest import sha256
from app.services.measured import MeasurementIn
from app.services.predicted import prediction_of
from app.services.saved_plans import ForbiddenError, check_key, check_text
from app.store.measurements import MeasurementRepository, StoredMeasurement
from app.store.repository import PlanRepository, StoredPlan
from app.store.session import Database

MAX_RUNS = 500
"""Measurements of one plan at most."""
_DEVICE_SLACK = 1.05
_TOKENS_SLACK = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMeasurement:
    """A measurement with the plan it is of; ``replayed`` where an earlier request under the same key had made it."""

    plan: StoredPlan
    measured: StoredMeasurement
    replayed: bool = False


class Measurements:
    """The use cases of ``/plans/{id}/measurements``, over one database."""

    def __init__(self, database: Database, calibrator: Calibrator) -> None:
        self._database, self.calibrator = database, calibrator

    def add(self, plan_id: str, given: MeasurementIn, *, client: str = "", idempotency_key: str | None = None) -> KeptMeasurement:
        """Keep what a run of a plan took; the answers after this one are calibrated with it.

        Args:
            plan_id: of the saved plan that was run.
            given: what was measured.
            client: who says so, where clients are known.
            idempotency_key: the same key with the same measurement keeps it once.

        Raises:
            NotFoundError: there is no such plan.
            InvalidRequestError: nothing was measured, or what the plan's GPUs or its step cannot have been.
            ConflictError: the key was used for another measurement, or the plan has as many as are kept.
            UnavailableError: the database does not answer.
        """
        if idempotency_key is not None:
            check_key(idempotency_key)
        check_text("note", given.note, len(given.note))
        with self._database.session(write=True) as session:
            plan, repository = PlanRepository(session).get(plan_id), MeasurementRepository(session)
            prediction = prediction_of(plan.answer)
            check_measurement(given, plan, prediction)
            made = _new(given, plan, prediction, (client, idempotency_key))
            if idempotency_key is not None and (earlier := repository.claimed(idempotency_key)) is not None:
                return _replayed(plan, earlier, made)
            if repository.count(plan_id) >= MAX_RUNS:
                raise ConflictError(f"this plan has {MAX_RUNS} measurements, as many as are kept of one plan; delete some first")
            if not repository.add(made):
                raise ConflictError("another request under this Idempotency-Key came in just now; send it again")
        self.calibrator.refresh()
        return KeptMeasurement(plan=plan, measured=made)

    def of_plan(self, plan_id: str) -> tuple[StoredPlan, tuple[StoredMeasurement, ...]]:
        """A saved plan and its measurements, the newest first; raises ``NotFoundError``."""
        with self._database.session() as session:
            return PlanRepository(session).get(plan_id), MeasurementRepository(session).of_plan(plan_id)

    def delete(self, plan_id: str, measurement_id: str, edit_token: str) -> None:
        """Take a measurement away, from the calibration too.

        Raises:
            NotFoundError: there is no such plan, or it has no such measurement.
            ForbiddenError: the token is not the plan's.
        """
        with self._database.session(write=True) as session:
            hashed = sha256(edit_token.encode(errors="replace"))
            deleted = MeasurementRepository(session).delete(plan_id, measurement_id, hashed)
        if not deleted:
            raise ForbiddenError("this edit_token is not the plan's; it was given once, when the plan was saved")
        self.calibrator.refresh()


def check_measurement(given: MeasurementIn, plan: StoredPlan, prediction: Mapping[str, Any]) -> None:
    """Refuse what says nothing, and what no run of this plan can have taken; raises ``InvalidRequestError``."""
    if given.peak_bytes is None and given.step_s is None and given.tokens_per_s is None and not given.oom:
        raise InvalidRequestError.at(
            "peak_bytes", msg="nothing was measured", hint="give peak_bytes with its counter, step_s, tokens_per_s, or oom: true"
        )
    if given.peak_bytes is not None and given.counter is None:
        raise InvalidRequestError.at(
            "counter", msg="peak_bytes is given without its counter", hint="say allocated, reserved or device: which figure it is"
        )
    if given.counter is not None and given.peak_bytes is None:
        raise InvalidRequestError.at("peak_bytes", msg=f"counter {given.counter} is given without peak_bytes", hint="give both or none")
    _check_device(given, plan.gpu_name, int(prediction.get("device_memory_bytes", 0)))
    _check_tokens(given, float(prediction.get("tokens_per_step", 0.0)))


def _check_device(given: MeasurementIn, gpu_name: str, device_bytes: int) -> None:
    most = int(device_bytes * _DEVICE_SLACK)
    if given.peak_bytes is None or given.oom or given.peak_bytes <= most or not device_bytes:
        return
    raise InvalidRequestError.at(
        "peak_bytes",
        msg=f"peak_bytes {given.peak_bytes:,} ({format_gib(given.peak_bytes)}) is more than one {gpu_name} of this plan has: "
        f"{device_bytes:,} bytes × {_DEVICE_SLACK} = {most:,} ({format_gib(most)})",
        hint="give the peak of one GPU in bytes, of a run on the plan's GPUs; where it ran out of memory, say oom: true",
    )


def _check_tokens(given: MeasurementIn, tokens_per_step: float) -> None:
    if given.step_s is None or given.tokens_per_s is None or not tokens_per_step:
        return
    told = given.step_s * given.tokens_per_s
    if abs(told / tokens_per_step - 1) <= _TOKENS_SLACK:
        return
    raise InvalidRequestError.at(
        "tokens_per_s",
        msg=f"step_s {given.step_s:g} × tokens_per_s {given.tokens_per_s:g} = {format_number(told)} tokens a step, "
        f"and a step of this plan has {tokens_per_step:,.0f}",
        hint="tokens_per_s is that of all GPUs together; where the run had another batch, save the plan it was of, or leave one out",
    )


def _new(given: MeasurementIn, plan: StoredPlan, prediction: Mapping[str, Any], sender: tuple[str, str | None]) -> StoredMeasurement:
    document = given.model_dump(mode="json")
    digest = sha256(orjson.dumps([plan.id, document], option=orjson.OPT_SORT_KEYS))
    shown = ("other_peaks", "moments", "expandable_segments", "versions")
    return StoredMeasurement(
        id=secrets.token_urlsafe(12), plan_id=plan.id, created_at=datetime.now(UTC), counter=given.counter, peak_bytes=given.peak_bytes,
        step_s=given.step_s, tokens_per_s=given.tokens_per_s, oom=given.oom, note=given.note.strip(), owner=sender[0],
        engine_version=plan.engine_version, idempotency_key=sender[1], request_hash=digest,
        details={name: document[name] for name in shown}, predicted=dict(prediction),
    )  # fmt: skip


def _replayed(plan: StoredPlan, earlier: StoredMeasurement, made: StoredMeasurement) -> KeptMeasurement:
    if earlier.request_hash != made.request_hash:
        raise ConflictError("this Idempotency-Key was used for another request; a key stands for one request, take a new one")
    return KeptMeasurement(plan=plan, measured=earlier, replayed=True)
