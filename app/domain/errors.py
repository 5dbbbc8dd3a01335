"""Errors that are meant for people: what was given, the rule, the arithmetic and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with one field of a request.

    Attributes:
        loc: path of the field in the request, e.g. ``("cluster", "pools", 0, "gpu")``.
        msg: what was given and the rule it breaks, with the arithmetic.
        hint: what to write instead; empty where the message says it.
    """

    loc: Loc
    msg: str
    hint: str = ""


class ShardplanError(Exception):
    """Base of every error this product raises on purpose."""

    code = "error"
    title = "The request could not be answered"

    def __init__(self, detail: str, errors: Iterable[FieldError] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)


class InvalidRequestError(ShardplanError):
    """The request makes no sense: a field is missing, malformed, out of range or contradicts another."""

    code = "invalid_request"
    title = "The request is not valid"

    @classmethod
    def at(cls, *loc: str | int, msg: str, hint: str = "") -> InvalidRequestError:
        """Build the error for a single field."""
        return cls(msg if not hint else f"{msg}; {hint}", (FieldError(loc, msg, hint),))


class UnsupportedModelError(InvalidRequestError):
    """A model whose parameters this product cannot count exactly; it never guesses silently."""

    code = "unsupported_model"
    title = "This model cannot be counted"


class NotFoundError(ShardplanError):
    """Something named in the URL does not exist."""

    code = "not_found"
    title = "Not found"


class ConflictError(ShardplanError):
    """The request is valid but the state of things does not allow it (no file where nothing fits)."""

    code = "conflict"
    title = "Not possible for this plan"


class UnavailableError(ShardplanError):
    """A service this one needs does not answer at the moment."""

    code = "unavailable"
    title = "Temporarily unavailable"
