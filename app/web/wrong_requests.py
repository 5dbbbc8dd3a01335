"""A sweep that is not valid, in words for people; without FastAPI, since the command needs them too."""

from __future__ import annotations

from app.domain.errors import FieldError, InvalidRequestError
from app.services.request import PlanRequest
from app.services.sweeps.reading import WrongRequestsError
from app.web.validation import MAX_ERRORS, field_errors


def wrong_requests(error: WrongRequestsError) -> InvalidRequestError:
    """What is wrong with the first requests that are not valid, and how many more there are."""
    told: list[FieldError] = []
    for where, found in error.found:
        said = field_errors(found.errors(), PlanRequest)
        told += [FieldError((*where, *e.loc), f"{where[0]} {where[1]}: {e.msg}", e.hint) for e in said]
    told = told[:MAX_ERRORS]
    shown = len({e.loc[:2] for e in told})
    if error.count > shown:
        told.append(FieldError((), f"{error.count - shown:,} more requests are not valid", "mend these first"))
    return invalid(tuple(told))


def invalid(errors: tuple[FieldError, ...]) -> InvalidRequestError:
    """A refusal that says the first of its errors, and how many more there are."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return InvalidRequestError((f"{first.msg}; {first.hint}" if first.hint else first.msg) + more, errors)
