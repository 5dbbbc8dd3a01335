"""What an orchestrator asks: does the process live, and should it be sent requests."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.domain.errors import FieldError, UnavailableError
from app.store.migrate import Schema, schema_of
from app.web.deps import DatabaseDep
from app.web.problems import RETRY_AFTER_S, Problem, respond
from app.web.schemas import problems

router = APIRouter(tags=["operations"])

_WRONG: dict[Schema, tuple[str, str]] = {
    "behind": ("the database is not migrated to the revision this version needs", "migrations run by themselves; the log says why not"),
    "missing": ("the database says it is migrated, but its tables are not there", "restore a backup"),
}
_BY_HAND = "SHARDPLAN_MIGRATE is off: run `shardplan migrate`"


@router.get("/healthz", summary="The process answers")
def healthz() -> dict[str, str]:
    """Answers while the process lives; asks nothing else."""
    return {"status": "ok"}


@router.get("/readyz", responses=problems(503), summary="Plans can be saved", response_model=dict[str, str])
def readyz(request: Request, database: DatabaseDep) -> Response | dict[str, str]:
    """Answers 200 when plans can be saved; 503 names what is wrong: ``database``, ``migrations`` or ``draining``.

    Planning works without a database. ``migrations`` is ``ahead`` where a newer version migrated it: this one still serves.
    """
    wrong = []
    if request.app.state.draining.is_set():
        wrong.append(FieldError(("draining",), "the process is shutting down", "send requests to another replica"))
    schema: Schema = "current"
    try:
        schema = database.inspect(schema_of)
    except UnavailableError as error:
        wrong.append(FieldError(("database",), error.detail))
    if schema in _WRONG:
        request.app.state.schema_keeper.wake()
        msg, hint = _WRONG[schema]
        wrong.append(FieldError(("migrations",), msg, hint if schema != "behind" or request.app.state.migrates else _BY_HAND))
    if not wrong:
        return {"status": "ready", "database": "ok", "migrations": schema, "draining": "no"}
    problem = Problem(
        status=503, code="not_ready", title="Not ready", detail="; ".join(error.msg for error in wrong), errors=tuple(wrong),
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )  # fmt: skip
    return respond(request, problem)
