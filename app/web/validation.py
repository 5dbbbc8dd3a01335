"""Pydantic's complaints in words for people: the key, what was given, the rule, the nearest valid key."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from app.domain.errors import FieldError, Loc

MAX_ERRORS = 20
MAX_SHOWN = 80
_SOURCES = frozenset({"body", "query", "path", "header", "cookie"})
_MISSING = frozenset({"missing", "missing_argument"})
_NOT_AN_OBJECT = frozenset({"model_type", "model_attributes_type", "dict_type", "dataclass_type"})
_SHOULD = "it should be "
_SUBJECT = re.compile(r"^(Input|List|String|Tuple|Set|Dictionary|Value|Number)\s+")
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
    return tuple(_merged(found))


def shown(value: Any) -> str:
    """A value as it may be repeated to its sender: JSON-like and short, and never the bytes of a body."""
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value):,} bytes that were not read as JSON"
    if isinstance(value, (dict, list)):
        return f"an object with {len(value)} keys" if isinstance(value, dict) else f"a list of {len(value)}"
    names = {None: "null", True: "true", False: "false"}
    text = names[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _field_error(error: Mapping[str, Any], model: Any) -> FieldError:
    raw = tuple(error["loc"])
    parts = raw[1:] if raw and raw[0] in _SOURCES else raw
    kind = error["type"]
    loc, valid = _walk(parts, model, ends_in_key=kind == "extra_forbidden")
    if kind == "extra_forbidden":
        return _unknown_key(loc, valid)
    name = ".".join(str(part) for part in loc) or "the body"
    if kind in _MISSING:
        return FieldError(loc, f"{name} is required")
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in _KEPT:
        return FieldError(loc, message)
    rule = f"{_SHOULD}an object" if kind in _NOT_AN_OBJECT else _SUBJECT.sub("it ", message).rstrip(".")
    return FieldError(loc, f"{name} is {shown(error.get('input'))}; {rule}")


def _merged(errors: Iterable[FieldError]) -> Iterator[FieldError]:
    """One error a field: what each member of a union wants is joined with "or"."""
    by_loc: dict[Loc, FieldError] = {}
    for error in errors:
        first = by_loc.setdefault(error.loc, error)
        other = error.msg.partition(_SHOULD)[2]
        if first is not error and other and other not in first.msg:
            by_loc[error.loc] = FieldError(first.loc, f"{first.msg} or {other}", first.hint)
    yield from by_loc.values()


def _unknown_key(loc: Loc, valid: Iterable[str]) -> FieldError:
    keys = sorted(valid)
    key, where = str(loc[-1]), ".".join(str(part) for part in loc[:-1]) or "the request"
    close = difflib.get_close_matches(key.lower(), keys, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else (f"{where} takes {', '.join(keys)}" if keys else "")
    return FieldError(loc, f"{where} has no key {key!r}", hint)


def _walk(parts: Loc, model: Any, *, ends_in_key: bool) -> tuple[Loc, set[str]]:
    """Path without union member names, and the keys that are valid beside its last part."""
    types_here = list(_members(model))
    kept: list[str | int] = []
    valid: set[str] = set()
    for depth, part in enumerate(parts):
        is_key = ends_in_key and depth == len(parts) - 1
        if isinstance(part, int):
            kept.append(part)
            types_here = [inner for hint in types_here for inner in _items(hint)]
            continue
        fields = {name: field for hint in types_here for name, field in _fields(hint).items()}
        names = {str(getattr(hint, "__name__", "")) for hint in types_here}
        if part not in fields and not is_key and (part in names or _is_tag(types_here)):
            types_here = [hint for hint in types_here if getattr(hint, "__name__", "") == part] or types_here
            continue
        valid = set(fields)
        kept.append(part[:MAX_SHOWN])
        types_here = list(_members(fields[part])) if part in fields else []
    return tuple(kept), valid


def _is_tag(types_here: list[Any]) -> bool:
    """Whether a path part can only be pydantic's name of a union member (``list[str]``): nothing here has keys."""
    keyed = (issubclass(hint, (BaseModel, Mapping)) for hint in map(_class_of, types_here))
    return bool(types_here) and Any not in types_here and not any(keyed)


def _class_of(hint: Any) -> type:
    origin = get_origin(hint) or hint
    return origin if isinstance(origin, type) else object


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
