"""Every operation of the service that the client has a method for; a test compares them with the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from app.services.audit_request import AuditRequest
from app.services.diagnose.asked import DiagnoseIn
from app.services.measured import MeasurementIn
from app.services.request import PlanRequest
from app.services.sweeps.reading import SweepIn
from app.web.comparing import CompareOut, ReplanOut
from app.web.diagnosing import DiagnosisOut
from app.web.measured_schemas import MeasurementListOut, MeasurementOut
from app.web.schemas import AuditOut, CatalogOut, PlanListOut, PlanOut, SavedPlanOut, SaveRequest, SweepOut

M_co = TypeVar("M_co", bound=BaseModel, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """How one thing is asked for.

    Attributes:
        method, path: of HTTP, with the names of what is filled into the path in braces.
        body: shape of what is sent; None where nothing is.
        or_lines: media type of a body of lines that may be sent instead; None where there is no such.
        query, headers: names of what may be given beside it.
        repeatable: asking twice does what asking once does, so that a broken connection is tried again.
        patient: an answer that says "not now" is tried again too.
        streamed: the answer may be large, and is read as it comes.
    """

    method: str
    path: str
    body: type[BaseModel] | None = None
    or_lines: str | None = None
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    repeatable: bool = True
    patient: bool = True
    streamed: bool = False


@dataclass(frozen=True, kw_only=True)
class Answered(Operation, Generic[M_co]):
    """An operation with the shape of its answer."""

    answer: type[M_co]


PLAN = Answered(method="POST", path="/plan", body=PlanRequest, query=("calibrate",), answer=PlanOut)
PLAN_FILE = Operation(method="POST", path="/plan/{file}", body=PlanRequest, query=("dialect",))
AUDIT = Answered(method="POST", path="/audit", body=AuditRequest, answer=AuditOut)
SAVE = Answered(method="POST", path="/plans", body=SaveRequest, headers=("Idempotency-Key",), answer=SavedPlanOut)
PLANS = Answered(method="GET", path="/plans", query=("q", "name", "model", "gpu", "cursor", "limit"), answer=PlanListOut)
GET = Answered(method="GET", path="/plans/{plan_id}", answer=SavedPlanOut)
FILE = Operation(method="GET", path="/plans/{plan_id}/{file}", query=("dialect",))
DELETE = Operation(method="DELETE", path="/plans/{plan_id}", headers=("Edit-Token",), repeatable=False)
REPLAN = Answered(method="POST", path="/plans/{plan_id}/replan", answer=ReplanOut)
COMPARE = Answered(method="GET", path="/plans/compare", query=("ids",), answer=CompareOut)
MEASURE = Answered(
    method="POST", path="/plans/{plan_id}/measurements", body=MeasurementIn, headers=("Idempotency-Key",), answer=MeasurementOut
)
MEASUREMENTS = Answered(method="GET", path="/plans/{plan_id}/measurements", answer=MeasurementListOut)
DELETE_MEASUREMENT = Operation(
    method="DELETE", path="/plans/{plan_id}/measurements/{measurement_id}", headers=("Edit-Token",), repeatable=False
)
SWEEP = Answered(
    method="POST", path="/sweeps", body=SweepIn, or_lines="application/jsonl", query=("name", "detail"), headers=("Idempotency-Key",),
    answer=SweepOut,
)  # fmt: skip
GET_SWEEP = Answered(method="GET", path="/sweeps/{sweep_id}", answer=SweepOut)
SWEEP_RESULTS = Operation(method="GET", path="/sweeps/{sweep_id}/results", query=("format",), streamed=True)
CANCEL_SWEEP = Answered(method="POST", path="/sweeps/{sweep_id}/cancel", headers=("Edit-Token",), answer=SweepOut)
DELETE_SWEEP = Operation(method="DELETE", path="/sweeps/{sweep_id}", headers=("Edit-Token",), repeatable=False)
DIAGNOSE = Answered(method="POST", path="/diagnose", body=DiagnoseIn, answer=DiagnosisOut)
CATALOG = Answered(method="GET", path="/catalog/{kind}", query=("q", "sort", "order"), answer=CatalogOut)
READY = Operation(method="GET", path="/readyz", patient=False)
