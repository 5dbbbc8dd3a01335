"""What a sweep is asked with: a list of requests, a grid, or a request a line; all of them are checked before anything is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.domain.errors import InvalidRequestError, Loc
from app.services.request import PlanRequest
from app.services.sweeps.grid import combinations, size_of

Detail = Literal["figures", "plan"]
MAX_SHOWN = 20
"""Requests at most whose mistakes are told; of the others their number is."""
_STRICT = ConfigDict(extra="forbid", frozen=True)


class GridIn(BaseModel):
    """One request, and values for some of its fields: every combination is planned, the last axis varying fastest."""

    model_config = _STRICT

    base: dict[str, Any] = Field(description="A PlanRequest; what the axes set may be left out.")
    axes: dict[str, list[Any]] = Field(
        min_length=1, description="Values by path.", examples=[{"training.seq_len": [2048, 4096], "cluster.pools.0.nodes": [1, 2, 4]}]
    )


class SweepIn(BaseModel):
    """A sweep as a JSON document: ``requests`` or ``grid``."""

    model_config = _STRICT

    name: str = Field("", max_length=200)
    detail: Detail = Field("figures", description="figures: totals of each plan; plan: each whole, as POST /plan answers it.")
    requests: list[Any] | None = None
    grid: GridIn | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> SweepIn:
        if (self.requests is None) == (self.grid is None):
            raise ValueError("give either requests, a list, or grid")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """How large a sweep may be.

    Attributes:
        requests: of figures; plans: where whole plans are wanted.
    """

    requests: int = 100_000
    plans: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSweep:
    """A sweep that was read and checked.

    Attributes:
        axes: paths that its grid varies; empty for a list.
        requests: a JSON document each.
    """

    name: str
    detail: Detail
    axes: tuple[str, ...]
    requests: Sequence[bytes]


class WrongRequestsError(Exception):
    """Some requests of a sweep are not valid.

    Attributes:
        found: where each of the first ones is, and what pydantic has against it.
        count: how many are not valid, those that are not among ``found`` included.
    """

    def __init__(self, found: Sequence[tuple[Loc, ValidationError]], count: int) -> None:
        super().__init__(f"{count} requests are not valid")
        self.found, self.count = tuple(found), count


def read_document(document: Any, limits: SweepLimits) -> WantedSweep:
    """Read a sweep from a JSON document.

    Raises:
        ValidationError: it is no sweep.
        WrongRequestsError: it is one, of requests that are not valid.
        InvalidRequestError: it has no requests or too many, or an axis that leads nowhere.
    """
    given = SweepIn.model_validate(document)
    if given.grid is None:
        made: Iterable[Any] = given.requests or ()
        _check_count(len(given.requests or ()), given.detail, limits, "requests")
        numbered: Iterator[tuple[Loc, Any]] = ((("requests", number), request) for number, request in enumerate(made))
        return WantedSweep(name=given.name, detail=given.detail, axes=(), requests=_checked(numbered))
    axes = given.grid.axes
    _check_count(size_of(axes), given.detail, limits, "grid")
    found = ((("grid", number), request) for number, request in enumerate(combinations(given.grid.base, axes)))
    return WantedSweep(name=given.name, detail=given.detail, axes=tuple(axes), requests=_checked(found))


def read_lines(body: bytes, limits: SweepLimits, *, name: str = "", detail: Detail = "figures") -> WantedSweep:
    """Read a sweep from JSON Lines; empty lines are passed over.

    Raises:
        WrongRequestsError: some are not valid.
        InvalidRequestError: a line is not JSON, or there are none or too many.
    """
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    _check_count(len(lines), detail, limits, "lines")
    return WantedSweep(
        name=name, detail=detail, axes=(), requests=_checked((("line", number), _parsed(number, line)) for number, line in lines)
    )


def _parsed(number: int, line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError.at("line", number, msg=f"line {number} is not JSON: {error.msg} at column {error.colno}") from error


def _checked(numbered: Iterable[tuple[Loc, Any]]) -> list[bytes]:
    """Every request as it is kept, once all of them are known to be valid."""
    kept: list[bytes] = []
    found: list[tuple[Loc, ValidationError]] = []
    count = 0
    for where, request in numbered:
        try:
            PlanRequest.model_validate(request)
        except ValidationError as error:
            count += 1
            if len(found) < MAX_SHOWN:
                found.append((where, error))
            continue
        kept.append(orjson.dumps(request))
    if found:
        raise WrongRequestsError(found, count)
    return kept


def _check_count(count: int, detail: Detail, limits: SweepLimits, field: str) -> None:
    most = limits.plans if detail == "plan" else limits.requests
    if count == 0:
        raise InvalidRequestError.at(field, msg="there is no request in it", hint="give one at least")
    if count > most:
        whole = f"; with detail figures {limits.requests:,} are" if detail == "plan" and count <= limits.requests else ""
        raise InvalidRequestError.at(
            field, msg=f"these are {count:,} requests; at most {most:,} are planned with detail {detail}", hint=f"split it{whole}"
        )
