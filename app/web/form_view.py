"""What the form shows: its fields by group and pool, with what was typed, what is wrong, and what it leads to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.catalog.gpus import load_gpus
from app.catalog.instances import load_instances
from app.catalog.models import load_models
from app.services.request import TokensFrom, tokens_of
from app.web.companion_form import row_of, rows_used
from app.web.fields import GROUPS, MAX_COMPANIONS, MAX_POOLS, FormField, all_fields, suffix
from app.web.forms import Form, FormError, field_at, pools_used

Notes = Mapping[str, list[str]]
_POOL = ("cluster", "pools")
_FETCHES = "A catalogue key such as llama-3.1-8b, or organisation/name, whose config.json is fetched."
_LISTED = "A catalogue key such as llama-3.1-8b; for another model give its config.json."


def form_view(values: Mapping[str, str], form: Form, notes: Notes, *, fetches: bool) -> dict[str, Any]:
    """Fields by group, the pools after the first, and the presets that are offered.

    Args:
        values: what the fields hold.
        form: what was typed, with what is wrong in it.
        notes: what to say beside a field.
        fetches: whether models are fetched by name.
    """
    wrong = by_field(form.errors)
    groups: dict[str, list[dict[str, Any]]] = {key: [] for key in (*GROUPS, "config")}
    shown = max(form.pools, pools_used([*values, *wrong]))
    pools: list[dict[str, Any]] = [{"number": number + 1, "fields": [], "custom": []} for number in range(1, shown)]
    rows = max(form.companions, rows_used([*values, *wrong]))
    beside: list[dict[str, Any]] = [{"number": number + 1, "fields": []} for number in range(rows)]
    used = set()
    for field in all_fields().values():
        place = field.path[2] if field.path[:2] == _POOL else 0
        row = row_of(field.name)
        if not isinstance(place, int) or place >= shown or (row is not None and row >= len(beside)):
            continue
        item = {"field": _named(field, fetches), "value": values.get(field.name, ""), "errors": wrong.get(field.name, [])}
        item["notes"] = notes.get(field.name, [])
        if row is not None:
            beside[row]["fields"].append(item)
            beside[row]["more"] = any(i["value"] or i["errors"] for i in beside[row]["fields"][6:])
            continue
        if place:
            pools[place - 1]["custom" if field.group == "pool_custom" else "fields"].append(item)
            pools[place - 1]["own"] = any(i["value"] or i["errors"] for i in pools[place - 1]["custom"])
            continue
        groups[field.group].append(item)
        if field.name in values or field.name in wrong:
            used.add(field.group)
    added = f"gpu{suffix(form.pools - 1)}" if form.pools > pools_used(values) else ""
    return {"groups": groups, "titles": GROUPS, "used": used, "offered": _offered(), "pools": pools, "more": shown < MAX_POOLS} | {
        "next": shown + 1,
        "companions": beside,
        "next_companion": rows + 1 if rows < MAX_COMPANIONS else 0,
        "added": added,
    }


def by_field(errors: Iterable[FormError]) -> dict[str, list[FormError]]:
    """Complaints by the field they stand beside."""
    found: dict[str, list[FormError]] = {}
    for error in errors:
        found.setdefault(error.field, []).append(error)
    return found


def typed_notes(document: Mapping[str, Any] | None, values: Mapping[str, str]) -> dict[str, list[str]]:
    """What a plan says about fields that were filled in, and the tokens of a clip.

    Args:
        document: the plan, or what there is of it: its request and warnings; None where there is none.
        values: what was typed.
    """
    if document is None:
        return {}
    notes = warned(((w["field"], f"{w['message']} {w['fix']}") for w in document["warnings"] if w["severity"] != "info"), values)
    clip = document["request"]["training"]["tokens_from"]
    return notes | ({"frames": [clip_note(clip)]} if clip else {})


def warned(warnings: Iterable[tuple[str, str]], values: Mapping[str, str]) -> dict[str, list[str]]:
    """Texts by the form field of their dotted paths; only of fields that were filled in."""
    notes: dict[str, list[str]] = {}
    for dotted, text in warnings:
        name = field_at(tuple(int(part) if part.isdigit() else part for part in dotted.split(".")))
        if name in values:
            notes.setdefault(name, []).append(text)
    return notes


def clip_note(clip: Any) -> str:
    """How many tokens a clip has."""
    return f"This clip has {tokens_of(TokensFrom.model_validate(clip)):,} tokens."


def _named(field: FormField, fetches: bool) -> FormField:
    """The field; that of the model says what names this server takes."""
    return replace(field, help=_FETCHES if fetches else _LISTED) if field.name == "model" else field


def _offered() -> dict[str, list[tuple[str, str]]]:
    return {
        "models": [(m.key, m.name) for m in load_models()],
        "gpus": [(g.key, g.name) for g in load_gpus()],
        "instances": [(i.key, f"{i.gpus_per_node} × {i.gpu}") for i in load_instances()],
    }
