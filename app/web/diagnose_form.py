"""The form of a diagnosis: a log or a measurement in fields of its own, and of the planner's fields those that sizes depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from app.domain.errors import FieldError, InvalidRequestError, Loc
from app.domain.units import parse_quantity
from app.services.diagnose.asked import DiagnoseIn
from app.web.fields import FormField, all_fields
from app.web.form_view import by_field, form_view
from app.web.forms import Form, FormError, at_field, read_parts
from app.web.validation import field_errors

OWN = ("log", "peak", "counter", "step_s")
"""Fields beside those of the request."""
COUNTERS = (("allocated", "allocated by tensors"), ("reserved", "reserved by the allocator"), ("device", "shown by nvidia-smi"))
SHOWN = {
    "The model and the GPUs": ("model", "gpu", "gpus_per_node", "nodes", "host_memory_gib", "inter_node_gbit_per_s"),
    "The batch": ("seq_len", "micro_batch", "grad_accum"),
    "How it was trained": ("strategy", "offload_optimizer", "offload_parameters", "activation_checkpointing", "attention", "adapter_kind",
                           "optimizer", "precision"),
}  # fmt: skip
"""Fields of the request that the form shows, by legend; others may be sent as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseForm:
    """What was typed, the question it makes, None where something is wrong with it.

    Attributes:
        own: texts of ``OWN``; values: of the planner's fields.
    """

    own: Mapping[str, str]
    values: Mapping[str, str]
    errors: tuple[FormError, ...] = ()
    question: DiagnoseIn | None = None

    def refused(self, error: InvalidRequestError) -> DiagnoseForm:
        """The same form with the complaints of an answer that could not be given."""
        listed = error.errors or (FieldError((), error.detail),)
        return DiagnoseForm(own=self.own, values=self.values, errors=tuple(_placed(found, self.values) for found in listed))

    def complaint(self) -> InvalidRequestError:
        """What is wrong, by field."""
        errors = tuple(FieldError((e.field,) if e.field else (), e.msg, e.hint) for e in self.errors)
        return InvalidRequestError("; ".join(e.msg for e in errors)[:2000], errors)


def read_diagnose_form(pairs: list[tuple[str, str]]) -> DiagnoseForm:
    """Read the fields; what cannot be read becomes errors beside them."""
    own = {name: text for name, text in pairs if name in OWN and text.strip()}
    values, document, errors = read_parts([pair for pair in pairs if pair[0] not in (*OWN, "log_file")])
    measured: dict[str, Any] = {"counter": own["counter"]} if "counter" in own else {}
    for name, key in (("peak", "peak_bytes"), ("step_s", "step_s")):
        if name in own:
            try:
                number = parse_quantity(own[name].removesuffix(" s") if name == "step_s" else own[name])
                measured[key] = round(number) if key == "peak_bytes" else number
            except ValueError as error:
                errors.append(FormError(name, str(error), "write one such as 71.2 GiB" if name == "peak" else "write seconds, such as 8.7"))
    question: dict[str, Any] = {"text": own.get("log", ""), "measured": measured}
    if document:
        question["request"] = document
    try:
        asked = DiagnoseIn.model_validate(question)
    except ValidationError as invalid:
        known = {error.field for error in errors}
        errors += [placed for found in field_errors(invalid.errors(), DiagnoseIn) if (placed := _placed(found, values)).field not in known]
        return DiagnoseForm(own=own, values=values, errors=tuple(errors))
    return DiagnoseForm(own=own, values=values, errors=tuple(errors), question=None if errors else asked)


_OWN_PATHS: dict[Loc, str] = {
    ("text",): "log",
    ("measured", "peak_bytes"): "peak",
    ("measured", "counter"): "counter",
    ("measured", "step_s"): "step_s",
}


def _placed(error: FieldError, values: Mapping[str, str]) -> FormError:
    """A complaint at the field it belongs to."""
    if error.loc in _OWN_PATHS:
        return FormError(_OWN_PATHS[error.loc], error.msg, error.hint)
    inner = error.loc[1:] if error.loc[:1] == ("request",) else error.loc
    return at_field(FieldError(inner, error.msg.removeprefix("request."), error.hint), values)


def _optional(field: FormField) -> FormField:
    """The field as one that may be left out: nothing is chosen by a planner here."""
    choices = tuple((value, "not said" if not value and word == "planner chooses" else word) for value, word in field.choices)
    return replace(field, required=False, choices=choices)


def diagnose_form_view(form: DiagnoseForm, *, fetches: bool) -> dict[str, Any]:
    """Fields by legend, with what was typed and what is wrong."""
    view = form_view(form.values, Form(values=form.values, errors=form.errors), {}, fetches=fetches)
    items = {item["field"].name: item | {"field": _optional(item["field"])} for group in view["groups"].values() for item in group}
    wrong = by_field(form.errors)
    shown = {name for names in SHOWN.values() for name in names}
    sent = [(name, text) for name, text in form.values.items() if name not in shown and name in all_fields()]
    return {
        "groups": [(legend, [items[name] for name in names]) for legend, names in SHOWN.items()],
        "own": {name: {"value": form.own.get(name, ""), "errors": wrong.get(name, [])} for name in OWN},
        "counters": COUNTERS,
        "offered": view["offered"],
        "others": sent,
        "added": "",
    }
