"""Flat form fields to a PlanRequest and back, with every complaint at the field it belongs to."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson
from pydantic import ValidationError

from app.catalog.models import find_model
from app.domain.errors import FieldError, InvalidRequestError, Loc, ShardplanError
from app.domain.units import GB, GIB, parse_quantity
from app.ingest.nesting import too_deep
from app.services.request import PlanRequest
from app.web.companion_form import COMPANIONS, at_its_row, listed, models_of, rows_asked
from app.web.fields import MAX_COMPANIONS, MAX_POOLS, FormField, all_fields, suffix
from app.web.validation import field_errors

CHANGE = "change"
"""Field of a button that overrides others: a query string of field names and values."""
POOLS, DROP, UPLOAD = "pools", "drop", "config_file"
"""Fields of the form's own: how many pools it shows, which of them to take away, and a config.json as a file."""
MAX_JSON_DEPTH = 64
_NOT_UTF8 = "\N{REPLACEMENT CHARACTER}"
_YES, _NO = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_RATE_UNITS = re.compile(r"\s*(?:g[bi]b?i?t?|tflops?|tflop)?\s*(?:/\s*s|ps)?\s*$", re.IGNORECASE)
_BYTE_UNIT = re.compile(r"[kmgt]i?b\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FormError:
    """One thing wrong: at a field, or with the form as a whole where ``field`` is empty."""

    field: str
    msg: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What was typed, what it means, and what is wrong with it.

    Attributes:
        values: text by field name, as typed; empty fields are left out.
        request: None where there are errors.
        pools: how many pools are asked to be shown, used or not; companions: how many rows of other models.
    """

    values: Mapping[str, str]
    errors: tuple[FormError, ...] = ()
    request: PlanRequest | None = None
    pools: int = 1
    companions: int = 0

    @property
    def query(self) -> str:
        """The fields as a query string."""
        return urlencode(self.values)

    def refused(self, error: ShardplanError) -> Form:
        """The same form with the complaints of an answer that could not be given."""
        complaints = error.errors or (FieldError((), error.detail),)
        return replace(self, errors=tuple(at_field(e, self.values) for e in complaints), request=None)

    def complaint(self) -> InvalidRequestError:
        """What is wrong, at the paths of the request."""
        fields = all_fields()
        errors = tuple(FieldError(fields[e.field].path if e.field else (), e.msg, e.hint) for e in self.errors)
        return InvalidRequestError("; ".join(e.msg for e in errors)[:2000], errors)


def read_form(pairs: Iterable[tuple[str, str]]) -> Form:
    """Read form fields; unknown names, text that is no number and values that make no sense become errors."""
    given = list(pairs)
    values, document, errors = read_parts(given)
    shown: dict[str, Any] = {"pools": _shown_pools(given, errors), "companions": rows_asked(given)}
    for part in ("model", "training", "cluster"):
        document.setdefault(part, {})
    document["cluster"].setdefault("pools", [{}])
    try:
        request = PlanRequest.model_validate(document)
    except ValidationError as invalid:
        errors += _besides(field_errors(invalid.errors(), PlanRequest), {error.field for error in errors}, values)
        return Form(values=values, errors=tuple(errors), **shown)
    return Form(values=values, errors=tuple(errors), request=None if errors else request, **shown)


def read_parts(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], dict[str, Any], list[FormError]]:
    """What was typed, the parts of a request it stands for, which need not make a whole one, and what could not be read."""
    values, errors = _collect(pairs)
    tree: dict[str, Any] = {}
    for name, text in values.items():
        field = all_fields()[name]
        try:
            _put(tree, field.path, _value(field, text))
        except ValueError as error:
            errors.append(FormError(name, str(error)))
    _prefer(tree, values)
    return values, _listed(tree), errors


def at_fields(found: Iterable[FieldError], errors: Iterable[FormError], values: Mapping[str, str]) -> list[FormError]:
    """Complaints at the fields of a form, but those that only follow from a field that could not be read."""
    return _besides(found, {error.field for error in errors}, values)


def _besides(found: Iterable[FieldError], known: set[str], values: Mapping[str, str]) -> list[FormError]:
    """Complaints about the request but those that only follow from a field that could not be read."""
    unread = [all_fields()[name].path for name in known if name]
    places = [(e, at_its_row(e.loc, values)) for e in found]
    errors = [at_field(e, values) for e, loc in places if not loc or not any(path[: len(loc)] == loc for path in unread)]
    return [error for error in errors if not error.field or error.field not in known]


def request_of(form: Form) -> PlanRequest:
    """The request a form stands for; raises ``InvalidRequestError`` with everything that is wrong with it."""
    if form.request is None:
        raise form.complaint()
    return form.request


def to_fields(document: Mapping[str, Any]) -> dict[str, str]:
    """Form fields of a request document; what equals the default is left out."""
    values: dict[str, str] = {}
    for field in all_fields().values():
        value = _get(document, field.path)
        if value is None or value == _plain(field.default) or (isinstance(value, dict) and field.kind == "text"):
            continue
        if text := _text(field, value):
            values[field.name] = text
    if hf_id := _get(document, ("model", "hf_id")):
        values = {"model": hf_id} | values
    for number, companion in enumerate(document.get(COMPANIONS) or ()):
        if hf_id := _get(companion, ("model", "hf_id")):
            values[f"companion{number + 1}_model"] = hf_id
    return values


def changed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, str]:
    """Form fields of a request with some dotted paths set anew; None unsets one.

    A new micro-batch frees the accumulation and a new sequence length replaces the clip, as both depend on them.
    """
    follow = {"training.micro_batch": "training.grad_accum", "training.seq_len": "training.tokens_from"}
    copy = orjson.loads(orjson.dumps(document))
    for path in (follow[key] for key in changes if key in follow and follow[key] not in changes):
        _assign(copy, path, None)
    for path, value in changes.items():
        _assign(copy, path, value)
    return to_fields(copy)


def field_at(loc: Loc) -> str:
    """Name of the form field for a path in the request: its own, or that of the nearest part it belongs to."""
    names = {field.path: field.name for field in all_fields().values()}
    names |= {
        ("model",): "model",
        ("model", "hf_id"): "model",
        ("training",): "seq_len",
        ("model", "shape"): "num_layers",
        ("constraints",): "strategy",
    }
    names |= {
        ("training", "tokens_from"): "frames",
        ("training", "adapter"): "adapter_kind",
        ("cluster",): "gpu",
        ("cluster", "pools"): "gpu",
        (COMPANIONS,): "companion1_role",
    }
    for pool in range(MAX_POOLS):
        names[("cluster", "pools", pool)] = "gpu" + suffix(pool)
    for number in range(MAX_COMPANIONS):
        names |= {(COMPANIONS, number): f"companion{number + 1}_role", (COMPANIONS, number, "model"): f"companion{number + 1}_model"}
    for length in range(len(loc), 0, -1):
        if loc[:length] in names:
            return names[loc[:length]]
    return ""


def pools_used(names: Iterable[str]) -> int:
    """How many pools the fields of a form speak of, at least the first."""
    fields = all_fields()
    paths = [fields[name].path for name in names if name in fields]
    return max([1, *(path[2] + 1 for path in paths if path[:2] == ("cluster", "pools") and isinstance(path[2], int))])


def _shown_pools(pairs: list[tuple[str, str]], errors: list[FormError]) -> int:
    for name, text in pairs:
        if name == UPLOAD and text.strip():
            hint = "press “Plan with this config.json”, or paste its text"
            errors.append(FormError("config", f"only the name of the file came, {text[:80]!r}, not what is in it", hint))
    typed = [text.strip() for name, text in pairs if name == POOLS and text.strip()]
    if not typed:
        return 1
    if re.fullmatch(r"\d{1,3}", typed[-1]) and 1 <= int(typed[-1]) <= MAX_POOLS:
        return int(typed[-1])
    errors.append(FormError("", f"pools is {typed[-1][:80]!r}; a form shows 1 to {MAX_POOLS}", f"leave it out, or write {MAX_POOLS}"))
    return 1


def _without_pool(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The fields without the pool to be dropped; those after it move up by one."""
    dropped = {int(text) - 1 for name, text in pairs if name == DROP and re.fullmatch(r"[2-9]", text.strip())}
    if not dropped:
        return pairs
    gone, fields, kept = dropped.pop(), all_fields(), []
    named = {field.path: name for name, field in fields.items()}
    for name, text in pairs:
        path = fields[name].path if name in fields else ()
        place = path[2] if path[:2] == ("cluster", "pools") else -1
        if not isinstance(place, int) or place < gone:
            kept.append((name, text))
        elif place > gone:
            kept.append((named[*path[:2], place - 1, *path[3:]], text))
    return kept


def _collect(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], list[FormError]]:
    given, errors = _without_pool(list(pairs)), list[FormError]()
    given = [pair for pair in given if pair[0] not in (POOLS, COMPANIONS, DROP, UPLOAD)]
    overrides = [pair for name, text in given if name == CHANGE for pair in parse_qsl(text, keep_blank_values=True)]
    replaced = {name for name, _ in overrides}
    values: dict[str, str] = {}
    for name, text in [pair for pair in given if pair[0] not in replaced | {CHANGE}] + overrides:
        if name not in all_fields():
            close = difflib.get_close_matches(name.lower(), all_fields(), n=1, cutoff=0.5)
            errors.append(FormError("", f"there is no field {name[:80]!r}", f"did you mean {close[0]}?" if close else ""))
        elif name in values and values[name] != text.strip():
            errors.append(FormError(name, f"{name} is given twice: {values[name][:80]} and {text[:80]}", "keep one"))
        elif text.strip():
            values[name] = text.strip()
    return values, errors


def _prefer(tree: dict[str, Any], values: Mapping[str, str]) -> None:
    """Apply what the labels promise: a description replaces the model's name, a clip the length, an instance or own GPU the listed one."""
    for model in (tree.get("model", {}), *models_of(tree)):
        if any(key in model for key in ("hf_config", "params", "shape")):
            model.pop("preset", None)
        elif "preset" in model and "/" in model["preset"] and not _known(model["preset"]):
            model["hf_id"] = model.pop("preset")
    training = tree.get("training", {})
    if {"height", "width"} <= set(training.get("tokens_from", {})):
        training.pop("seq_len", None)
    for number, pool in tree.get("cluster", {}).get("pools", {}).items():
        if "instance" in pool and "gpu" + suffix(number) in values:
            pool.pop("gpu", None)
            pool.pop("gpus_per_node", None)


def _known(model: str) -> bool:
    try:
        find_model(model)
    except InvalidRequestError:
        return False
    return True


def _value(field: FormField, text: str) -> Any:
    """The value a text stands for.

    Raises:
        ValueError: with words for the person who typed it.
    """
    if field.kind == "json":
        return _json(text)
    if field.kind == "flag":
        if text.lower() in _YES | _NO:
            return text.lower() in _YES
        raise ValueError(f"{field.label} is {text[:80]!r}; write true or false")
    if field.kind == "triple":
        parts = [part.strip() for part in text.split(",")]
        if len(parts) == 3 and all(re.fullmatch(r"\d{1,9}", part) for part in parts):
            return [int(part) for part in parts]
        raise ValueError(f"{field.label} is {text[:80]!r}; write three whole numbers such as 4,8,8")
    if field.kind == "names":
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return parts[0] if field.default == "all-linear" and parts in (["all-linear"], ["attention"]) else parts
    return text if field.kind in ("text", "choice") else _number(field, text)


def _number(field: FormField, text: str) -> int | float:
    plain, sign = (text[1:], -1) if text.startswith(("-", "−")) else (text, 1)
    percent = field.kind == "frac" and plain.endswith("%")
    plain = plain.rstrip("% ") if percent else plain
    if field.kind == "rate" and not re.fullmatch(r"[\d,._]+(e[+-]?\d+)?", plain, re.IGNORECASE):
        plain = _RATE_UNITS.sub("", plain)
    try:
        value = sign * parse_quantity(plain, binary_k=field.kind == "tokens")
    except ValueError as error:
        raise ValueError(f"{field.label}: {str(error)[:160]}; {_EXAMPLES.get(field.kind, 'write one such as 8')}") from error
    if field.kind in ("gib", "gb"):
        return _memory(field, plain, value)
    if field.kind in ("int", "tokens"):
        if not value.is_integer():
            raise ValueError(f"{field.label} is {text[:80]!r}; it must be a whole number")
        return int(value)
    return value / 100 if percent else value


_EXAMPLES = {
    "tokens": "write one such as 8192 or 8k",
    "gib": "write one such as 2048 or 2 TiB",
    "gb": "write one such as 28000 or 28 TB",
    "frac": "write one such as 0.05 or 5 %",
    "amount": "write one such as 7.5B",
}


def _memory(field: FormField, text: str, value: float) -> float:
    """Memory in the field's unit; text with a unit of its own is converted."""
    if _BYTE_UNIT.search(text):
        return value / (GIB if field.kind == "gib" else GB)
    if text[-1:].isalpha():
        raise ValueError(f"{field.label} is {text[:80]!r}; write the whole unit, such as 80 GiB or 80 GB")
    return value


def _json(text: str) -> Any:
    if _NOT_UTF8 in text:
        raise ValueError("config.json holds bytes that are not UTF-8; save it as UTF-8")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"config.json is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    if not isinstance(value, dict):
        raise ValueError(f"config.json must be an object in braces, not a {type(value).__name__}")
    if too_deep(value, MAX_JSON_DEPTH):
        raise ValueError(f"config.json nests objects more than {MAX_JSON_DEPTH} deep")
    return value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _text(field: FormField, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if field.kind == "json":
        return json.dumps(value, indent=1, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _put(tree: dict[str, Any], path: Loc, value: Any) -> None:
    """Set a value in nested dicts; a custom GPU replaces the name of a listed one, whichever comes first."""
    node: Any = tree
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    if not isinstance(node.get(path[-1]), dict):
        node[path[-1]] = value


def _listed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with its numbered pools as a list, in order and without gaps."""
    document = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    if pools := document.get("cluster", {}).get("pools"):
        document["cluster"]["pools"] = [pools.get(number, {}) for number in range(max(pools) + 1)]
    listed(document)
    return document


def _get(document: Any, path: Loc) -> Any:
    for part in path:
        if isinstance(part, int):
            document = document[part] if isinstance(document, list) and part < len(document) else None
        else:
            document = document.get(part) if isinstance(document, Mapping) else None
        if document is None:
            return None
    return document


def _assign(document: Any, path: str, value: Any) -> None:
    parts = path.split(".")
    for part in parts[:-1]:
        document = document[int(part)] if isinstance(document, list) else document[part]
    document[parts[-1]] = value


def at_field(error: FieldError, values: Mapping[str, str]) -> FormError:
    """The complaint at the form field it belongs to, in the field's words."""
    name = field_at(loc := at_its_row(error.loc, values))
    dotted = ".".join(str(part) for part in error.loc)
    label = all_fields()[name].label if name else ""
    exact = bool(name) and all_fields()[name].path == loc
    return FormError(name, error.msg.replace(dotted, label) if exact else error.msg, error.hint)
