"""What a client raises: the service refused, did not answer, or answered something that is no answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from app.domain.errors import FieldError, ShardplanError, UnavailableError

if TYPE_CHECKING:
    import httpx

    from app.web.schemas import SweepOut

_KIND = "urn:shardplan:problem:"


class ProblemError(ShardplanError):
    """The service answered that it cannot do what was asked.

    Attributes:
        status: of HTTP: 409 nothing fits or the file is another framework's, 422 a field is wrong, 404 there is no such plan, …
        code: the kind of problem, such as ``invalid_request``; ``error`` where the service did not say.
        title, detail: what the service says of it.
        errors: the fields at fault, each with ``loc``, ``msg`` and ``hint``.
        request_id: under which the service's log has it; empty where it did not say.
    """

    def __init__(self, status: int, document: Mapping[str, Any], *, detail: str) -> None:
        super().__init__(_text(document, "detail") or detail, _errors(document.get("errors")))
        self.status = status
        self.code = _text(document, "type").removeprefix(_KIND) or ShardplanError.code
        self.title = _text(document, "title") or ShardplanError.title
        self.request_id = _text(document, "request_id")


class ServiceUnavailableError(UnavailableError):
    """The service did not answer, or asked to be left alone for now (429, 502, 503, 504); the tries are used up.

    Attributes:
        status: of HTTP; None where nothing came back.
        retry_after_s: seconds after which it wants to be asked again; None where it did not say.
        errors: what is wrong, where it said; of ``/readyz`` ``database``, ``migrations`` or ``draining``.
    """

    def __init__(
        self, detail: str, *, status: int | None = None, retry_after_s: float | None = None, errors: Iterable[FieldError] = ()
    ) -> None:
        super().__init__(detail, errors)
        self.status, self.retry_after_s = status, retry_after_s


class SweepNotDoneError(ShardplanError):
    """A sweep was not done when it was not to be waited for any longer; it goes on.

    Attributes:
        sweep: how far it was.
    """

    def __init__(self, sweep: SweepOut) -> None:
        super().__init__(f"sweep {sweep.id} is not done yet: {sweep.done:,} of {sweep.total:,} rows; it goes on")
        self.sweep = sweep


class AnswerError(ShardplanError):
    """What came back is not what this client knows: another program's answer, or one of a much newer or older service."""


def problem_of(response: httpx.Response, *, where: str) -> ProblemError:
    """What a refusal says."""
    said = f"{where} answers {described(response)} and does not say why; is it the address of a Shardplan service?"
    return ProblemError(response.status_code, document_of(response), detail=said)


def document_of(response: httpx.Response) -> Mapping[str, Any]:
    """The problem document of a refusal; empty where it has none, as those of proxies have not."""
    if response.headers.get("content-type", "").partition(";")[0].strip() != "application/problem+json":
        return {}
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def described(response: httpx.Response) -> str:
    """A status with its name."""
    status = response.status_code
    return f"{status} {HTTPStatus(status).phrase}" if status in HTTPStatus.__members__.values() else str(status)


def _errors(listed: Any) -> Iterable[FieldError]:
    for error in listed if isinstance(listed, list) else ():
        if isinstance(error, dict) and isinstance(error.get("loc"), list):
            yield FieldError(tuple(error["loc"]), _text(error, "msg"), _text(error, "hint"))


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""
