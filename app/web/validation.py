"""Pydantic's complaints in words for people: the key, what was given, the rule, the nearest valid key."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from app.domain.errors import FieldError, Loc

MAX_ERRORS = 20
MAX_SHOWN = 80
_SOURCES = frozenset({"body", "query", "path", "header", "cookie"})
_MISSING = frozenset({"missing", "missing_argument"})
_KEPT = frozenset({"value_error", "assertion_error"})


def field_errors(errors: Iterable[Mapping[str, Any]], model: Any = None) -> tuple[FieldError, ...]:
    """Translate ``error.errors()`` of pydantic or FastAPI.

    Args:
        errors: the list of complaints.
        model: type the input was read as; with it an unknown key is answered with the nearest valid one, and the names
            of union members that pydantic puts into paths are left out.
    """
    listed = list(errors)
    found = [_field_error(error, model) for error in listed[:MAX_ERRORS]]
    if len(listed) > MAX_ERRORS:
        found.append(FieldError((), f"{len(listed) - MAX_ERRORS} more errors are not shown", "mend these first"))
    return tuple(dict.fromkeys(found))


def shown(value: Any) -> str:
    """A value as it may be repeated to its sender: JSON-like and short."""
    if isinstance(value, (dict, list)):
        return f"an object with {len(value)} keys" if isinstance(value, dict) else f"a list of {len(value)}"
    names = {None: "null", True: "true", False: "false"}
    text = names[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _field_error(error: Mapping[str, Any], model: Any) -> FieldError:
    raw = tuple(error["loc"])
    parts = raw[1:] if raw and raw[0] in _SOURCES else raw
    loc, valid = _walk(parts, model)
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown_key(loc, valid)
    name = ".".join(str(part) for part in loc) or "the body"
    if kind in _MISSING:
        return FieldError(loc, f"{name} is required")
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in _KEPT:
        return FieldError(loc, message)
    message = message.removeprefix("Input ").rstrip(".")
    return FieldError(loc, f"{name} is {shown(error.get('input'))}; it {message}")


def _unknown_key(loc: Loc, valid: Iterable[str]) -> FieldError:
    keys = sorted(valid)
    key, where = str(loc[-1]), ".".join(str(part) for part in loc[:-1]) or "the request"
    close = difflib.get_close_matches(key.lower(), keys, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else (f"{where} takes {', '.join(keys)}" if keys else "")
    return FieldError(loc, f"{where} has no key {key!r}", hint)


def _walk(parts: Loc, model: Any) -> tuple[Loc, set[str]]:
    """Path without union member names, and the keys that are valid beside its last part."""
    types_here = list(_members(model))
    kept: list[str | int] = []
    valid: set[str] = set()
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(part, int):
            kept.append(part)
            types_here = [inner for hint in types_here for inner in _items(hint)]
            continue
        fields = {name: field for hint in types_here for name, field in _fields(hint).items()}
        names = {str(getattr(hint, "__name__", "")) for hint in types_here}
        if part not in fields and not last and (part in names or _is_tag(part, fields)):
            types_here = [hint for hint in types_here if getattr(hint, "__name__", "") == part] or types_here
            continue
        valid = set(fields)
        kept.append(part[:MAX_SHOWN])
        types_here = list(_members(fields[part])) if part in fields else []
    return tuple(kept), valid


def _is_tag(part: str, fields: Mapping[str, Any]) -> bool:
    """Whether a path part is pydantic's name of a union member (``list[str]``, ``function-after[…]``)."""
    return bool(fields) is False and ("[" in part or part in ("str", "int", "float", "bool", "none"))


def _fields(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return {field.alias or name: field.annotation for name, field in hint.model_fields.items()}
    return {}


def _items(hint: Any) -> Iterator[Any]:
    for argument in get_args(hint):
        yield from _members(argument)


def _members(hint: Any) -> Iterator[Any]:
    """The alternatives of a type: itself, or each member of a union."""
    if get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _members(member)
    elif hasattr(hint, "__metadata__"):
        yield from _members(get_args(hint)[0])
    elif hint is not None and hint is not type(None):
        yield hint
