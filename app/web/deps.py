"""What endpoints ask for, taken from ``app.state``, where ``create_app`` puts it."""

from __future__ import annotations

import re
from typing import Annotated, cast

from fastapi import Depends, Request
from starlette.datastructures import UploadFile

from app.domain.errors import FieldError
from app.ingest.hub import Hub
from app.observability import Metrics
from app.services.key_check import KeyCheck
from app.services.measurements import Measurements
from app.services.saved_plans import SavedPlans
from app.services.sweeps.kept import Sweeps
from app.store.session import Database
from app.web.keys import client_id
from app.web.problems import JSON, MediaTypeError

JSON_TYPE = re.compile(r"application/(?:[^\s/;]+\+)?json", re.IGNORECASE)
_QUIET = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})


async def get_hub(request: Request) -> Hub | None:
    """Where models are fetched from; None where that is switched off."""
    return cast(Hub | None, request.app.state.hub)


async def get_database(request: Request) -> Database:
    """The process's database."""
    return cast(Database, request.app.state.database)


async def get_saved_plans(request: Request) -> SavedPlans:
    """The use cases of saved plans."""
    return cast(SavedPlans, request.app.state.saved_plans)


async def get_measurements(request: Request) -> Measurements:
    """The use cases of measurements, with the calibration they make."""
    return cast(Measurements, request.app.state.measurements)


async def get_sweeps(request: Request) -> Sweeps:
    """The use cases of sweeps."""
    return cast(Sweeps, request.app.state.sweeps)


async def get_client_id(request: Request) -> str:
    """The client a request's key stands for; empty where no key is asked for."""
    return client_id(request.scope.get("state", {}))


async def get_key_check(request: Request) -> KeyCheck:
    """What says whether a key may enter."""
    return cast(KeyCheck, request.app.state.key_check)


async def get_posted(request: Request) -> list[tuple[str, str]]:
    """Fields of a posted form; a file is the text that is in it, and takes the place of the field it is another way to fill."""
    form = await request.form()
    fields, files = list[tuple[str, str]](), dict[str, str]()
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            fields.append((name, value))
        elif value.filename:
            files[name.removesuffix("_file")] = (await value.read()).decode("utf-8-sig", errors="replace")
    return [(name, text) for name, text in fields if name not in files] + list(files.items())


async def get_metrics(request: Request) -> Metrics:
    """The process's counters."""
    return cast(Metrics, request.app.state.metrics)


async def json_only(request: Request) -> None:
    """Refuse a body that does not say it is JSON, before anything reads it.

    Raises:
        MediaTypeError: with the Content-Type that was given, and the one that is read.
    """
    given = request.headers.get("content-type", "")
    if request.method in _QUIET or JSON_TYPE.fullmatch(given.partition(";")[0].strip()) or not await request.body():
        return
    msg = f"Content-Type is {given[:80]!r}; this address reads JSON" if given else "the body has no Content-Type; this address reads JSON"
    hint = f"send Content-Type: {JSON}"
    raise MediaTypeError(f"{msg}; {hint}", (FieldError(("Content-Type",), msg, hint),))


HubDep = Annotated[Hub | None, Depends(get_hub)]
DatabaseDep = Annotated[Database, Depends(get_database)]
SavedPlansDep = Annotated[SavedPlans, Depends(get_saved_plans)]
MeasurementsDep = Annotated[Measurements, Depends(get_measurements)]
SweepsDep = Annotated[Sweeps, Depends(get_sweeps)]
ClientIdDep = Annotated[str, Depends(get_client_id)]
MetricsDep = Annotated[Metrics, Depends(get_metrics)]
Posted = Annotated[list[tuple[str, str]], Depends(get_posted)]
