"""Use case: plan the request of a saved plan again, and say what moved and why. Saves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from app import ENGINE_VERSION
from app.domain.errors import ConflictError
from app.domain.units import format_gib, format_number
from app.ingest.hub import Hub
from app.services.diff import Row, file_changes, rows, terms_of
from app.services.plan import answer
from app.services.request import PlanRequest
from app.store.repository import StoredPlan

Document = Mapping[str, Any]
_CHOICES = (
    "framework", "strategy", "micro_batch", "grad_accum", "activation_checkpointing", "offload_optimizer", "offload_parameters",
    "tensor_parallel", "pipeline_parallel", "sequence_parallel", "expert_parallel", "shard_group_size",
)  # fmt: skip
_TIME_PARTS = ("compute_s", "exposed_communication_s", "optimizer_s", "offload_s")


def replan(saved: StoredPlan, hub: Hub | None = None) -> dict[str, Any]:
    """The Plan of today's engine for a saved plan's request, with ``replan_of`` and ``changes``.

    Raises:
        ConflictError: today's engine does not take the request as it was saved.
        InvalidRequestError: it takes it, but cannot answer it (a catalogue entry is gone, fetching is switched off).
        UnavailableError: the hub that the model is to be fetched from does not answer.
    """
    try:
        request = PlanRequest.model_validate(dict(saved.request))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ConflictError(
            f"the request was saved under engine {saved.engine_version}, and {ENGINE_VERSION} does not take it: {field}: {first['msg']}"
        ) from error
    asked, commit = request.model.revision, _commit(saved, request)
    if commit:
        # What moved is to be the engine, not the model: a branch may point elsewhere by now.
        request = request.model_copy(update={"model": request.model.model_copy(update={"revision": commit})})
    document = answer(request, hub).document()
    document["request"]["model"]["revision"] = asked
    origin = {"id": saved.id, "name": saved.name, "created_at": saved.created_at.isoformat(), "engine_version": saved.engine_version}
    moved = changes(saved.answer, document)
    if request.model.hf_id:
        moved["summary"] += f" The model was read at {commit}, the commit that was saved." if commit else _UNKNOWN_COMMIT
    return document | {"replan_of": origin, "changes": moved}


_UNKNOWN_COMMIT = " The commit the model was read at was not saved then, so the model may be another one now."


def _commit(saved: StoredPlan, request: PlanRequest) -> str | None:
    """The commit a fetched model was read at; None for others, and where an earlier engine did not record it."""
    recorded = (saved.answer.get("model") or {}).get("revision")
    return str(recorded) if request.model.hf_id and recorded else None


def changes(then: Document, now: Document) -> dict[str, Any]:
    """What moved between two answers to the same request, each figure with a reason read from the two."""
    moved = [row for row in rows([then, now]) if row.differs]
    versions = {"then": then.get("engine_version"), "now": now["engine_version"]}
    files = file_changes(then.get("files") or {}, now["files"])
    listed = [
        {"section": row.section, "key": row.key, "unit": row.unit, "then": row.values[0], "now": row.values[1],
         "change": _change(row), "why": _why(row, moved, then, now)}
        for row in moved
    ]  # fmt: skip
    return {"engine_version": versions, "summary": _summary(moved, files, versions), "moved": listed, "files": files}


def _summary(moved: Sequence[Row], files: Sequence[Mapping[str, str]], versions: Mapping[str, Any]) -> str:
    same = versions["then"] == versions["now"]
    engines = f"under the same engine, {versions['now']}" if same else f"from engine {versions['then']} to {versions['now']}"
    if not moved and not files:
        return f"Nothing moved {engines}."
    said = [f"{len(moved)} {'figure' if len(moved) == 1 else 'figures'} and {len(files)} {'file' if len(files) == 1 else 'files'} "
            f"moved {engines}."]  # fmt: skip
    for row in moved:
        if row.section == "verdict" and row.key == "verdict":
            said.append(f"The verdict was {_words(row.values[0])} and is {_words(row.values[1])}.")
    if same:
        said.append("Since the engine is the same, data it reads has changed: the catalogue, or a model that was fetched.")
    return " ".join(said)


def _change(row: Row) -> float | int | None:
    """The difference of two numbers; None where one of them is none."""
    then, now = row.values
    if isinstance(then, bool) or isinstance(now, bool) or not (isinstance(then, (int, float)) and isinstance(now, (int, float))):
        return None
    return now - then


def _why(row: Row, moved: Sequence[Row], then: Document, now: Document) -> str:
    term = row.key.removesuffix(", exposed")
    if term in terms_of(now, row.section) or term in terms_of(then, row.section):
        return _why_term(row.section, term, then, now)
    special: dict[str, Callable[[], str]] = {
        "verdict": lambda: _why_verdict(then, now),
        "settings": lambda: _why_settings(then, now),
        "request": lambda: "what was asked is the same; the engine fills in or reads this field differently",
        "model": lambda: _why_model(row, then, now),
        "warnings": lambda: "new" if row.values[0] is None else "no longer said" if row.values[1] is None else "said differently",
    }
    if row.section in special:
        return special[row.section]()
    if row.key in ("capacity_bytes", "usd_per_hour"):
        return "another figure in the catalogue"
    parts = [other for other in moved if other.section == row.section and other != row and _is_part(row, other, now, then)]
    return _largest(row, parts)


def _why_term(section: str, name: str, then: Document, now: Document) -> str:
    """From the two formulas: another equation, other numbers in it, or a rate behind it."""
    before, after = terms_of(then, section).get(name), terms_of(now, section).get(name)
    same_settings = _choice(then) == _choice(now)
    if before is None:
        return "counted by this engine only" if same_settings else "the settings chosen now have it"
    if after is None:
        return "not counted by this engine" if same_settings else "the settings chosen now do not have it"
    if before.get("equation") != after.get("equation"):
        return f"another equation: {after.get('equation')}, was {before.get('equation')}"
    if before.get("formula") != after.get("formula"):
        return f"other numbers in the same equation: {after.get('formula')}, was {before.get('formula')}"
    return "the same formula with another rate or rounding behind it"


def _why_model(row: Row, then: Document, now: Document) -> str:
    if row.key == "revision":
        return "read at another commit" if all(row.values) else "not recorded then" if row.values[1] else "not fetched now"
    return f"counted by {now['model'].get('counted_by')}, was {(then.get('model') or {}).get('counted_by')}"


def _why_verdict(then: Document, now: Document) -> str:
    sides = [(document.get("recommended") or {}).get("memory", {}).get("gpu", {}) for document in (now, then)]
    told = [f"{format_gib(gpu['device_bytes'])} of {format_gib(gpu['capacity_bytes'])}" for gpu in sides if "device_bytes" in gpu]
    return ", was ".join(told) + " at the GPU's peak" if len(told) == len(sides) else "judged by this engine's figures"


def _why_settings(then: Document, now: Document) -> str:
    """What today's engine thinks of the former choice."""
    former = _choice(then)
    if former == _choice(now):
        return "the same plan; this engine writes or sizes this setting differently"
    best = now["recommended"]
    for number, other in enumerate(now["alternatives"], 2):
        if {key: other["settings"].get(key) for key in _CHOICES} == former:
            step, memory = other["time"]["step_s"], other["memory"]["gpu"]["device_bytes"]
            return (
                f"the former settings are alternative {number} now: {format_number(step)} s a step and {format_gib(memory)}, "
                f"against {format_number(best['time']['step_s'])} s and {format_gib(best['memory']['gpu']['device_bytes'])}"
            )
    for rung in now["ladder"]:
        if all(rung["settings"].get(key) == former[key] for key in ("framework", "strategy")) and rung["why_not"]:
            return f"of the former strategy, {rung['label']}, this engine says: {rung['why_not']}"
    return "this engine finds the settings chosen now better than the former"


def _is_part(total: Row, part: Row, now: Document, then: Document) -> bool:
    """Whether one moved row can be a reason of another: terms of totals, and parts of the step."""
    named = part.key in terms_of(now, total.section) or part.key in terms_of(then, total.section)
    if total.section == "time":
        return part.key in _TIME_PARTS if total.key not in _TIME_PARTS else named
    return named and part.unit == "bytes"


def _largest(total: Row, parts: Sequence[Row]) -> str:
    """The part that moved most, in words; of a total in the same unit one that moved the same way."""
    sized = [((part.values[1] or 0) - (part.values[0] or 0), part) for part in parts]
    whole = _change(total)
    if whole is not None:
        sized = [(change, part) for change, part in sized if part.unit != total.unit or change * whole > 0]
    if not sized:
        return "follows from the figures above"
    change, part = max(sized, key=lambda item: abs(item[0]))
    amount = format_gib(abs(change)) if part.unit == "bytes" else f"{format_number(abs(change))} s"
    return f"mostly {_words(part.key.removesuffix('_s'))}: {amount} {'more' if change > 0 else 'less'}"


def _choice(document: Document) -> dict[str, Any]:
    settings = (document.get("recommended") or {}).get("settings") or {}
    return {key: settings.get(key) for key in _CHOICES}


def _words(value: Any) -> str:
    return str(value).replace("_", " ")
