"""What runs of saved plans really took."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from app.client import operations
from app.client.asking import Asking
from app.client.transport import Given
from app.services.measured import MeasurementIn
from app.web.measured_schemas import MeasurementListOut, MeasurementOut


class MeasurementCalls(Asking):
    """What ``/plans/{id}/measurements`` does."""

    def measure(self, plan_id: str, measured: MeasurementIn | Mapping[str, Any], *, idempotency_key: str | None = None) -> MeasurementOut:
        """Say what a run of a saved plan took, once however often it is sent: under the key given, or one made for this call."""
        body = measured.model_dump(mode="json", exclude_unset=True) if isinstance(measured, MeasurementIn) else dict(measured)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._answer(operations.MEASURE, Given(path={"plan_id": plan_id}, headers=headers, body=body))

    def measurements(self, plan_id: str) -> MeasurementListOut:
        """What runs of a plan took, the newest first, and what runs of such setups say about it."""
        return self._answer(operations.MEASUREMENTS, Given(path={"plan_id": plan_id}))

    def delete_measurement(self, plan_id: str, measurement_id: str, edit_token: str) -> None:
        """Take one away, with the token that the plan's save answered with."""
        path = {"plan_id": plan_id, "measurement_id": measurement_id}
        self._send(operations.DELETE_MEASUREMENT, Given(path=path, headers={"Edit-Token": edit_token}))
