"""Measurements as documents and as rows of pages: predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from app import ENGINE_VERSION
from app.domain.units import format_gib
from app.services.calibrate import counted_as, step_of, used_for
from app.services.predicted import parts_of
from app.store.measurements import StoredMeasurement
from app.web.charts import seconds

Document = Mapping[str, Any]
LOCAL_SHOWN = 100
"""Local runs that the accuracy page lists."""
_GROWN = ", expandable segments"


def measurement_document(run: StoredMeasurement) -> dict[str, Any]:
    """A measurement in the contract's shape."""
    predicted = {"peak_bytes": _predicted_peak(run), "step_s": _predicted_step(run)}
    measured = {"peak_bytes": None if run.oom else run.peak_bytes, "step_s": step_of(run)}
    return {
        "id": run.id, "created_at": run.created_at.isoformat(), "peak_bytes": run.peak_bytes, "counter": run.counter,
        "step_s": run.step_s, "tokens_per_s": run.tokens_per_s, "oom": run.oom, "note": run.note, **run.details,
        "engine_version": run.engine_version, "predicted": predicted,
        "error_frac": {name: error_frac(predicted[name], measured[name]) for name in predicted},
        "used_for": used_for(run) if run.engine_version == ENGINE_VERSION else [], "not_used": why_not(run),
        "links": {"self": f"/plans/{run.plan_id}/measurements/{run.id}", "plan": f"/plans/{run.plan_id}"},
    }  # fmt: skip


def error_frac(predicted: float | None, measured: float | None) -> float | None:
    """By how much a prediction was off, relative to what was measured; None where one is not there."""
    return (predicted - measured) / measured if predicted is not None and measured else None


def why_not(run: StoredMeasurement) -> str:
    """Why a run has no say in some factor it was measured for."""
    if run.engine_version != ENGINE_VERSION:
        return f"the plan is of engine {run.engine_version}, and answers are of {ENGINE_VERSION}: plan and measure again"
    if not run.predicted.get("situation"):
        return "the plan does not say which kind of model it is of: save it again with this engine"
    used = used_for(run)
    if run.peak_bytes is not None and "memory" not in used:
        return f"nothing in the {run.counter} total of this plan is fitted, so its peak corrects nothing; reserved or device would"
    if run.oom and "memory" not in used:
        return "nothing is known of this GPU's memory"
    return ""


def runs_view(runs: Sequence[StoredMeasurement]) -> list[dict[str, Any]]:
    """Rows of one plan's runs."""
    return [
        _row(run) | {"id": run.id, "created": f"{run.created_at:%Y-%m-%d %H:%M} UTC", "note": run.note, "why": why_not(run)} for run in runs
    ]


def local_view(runs: Sequence[StoredMeasurement]) -> dict[str, Any]:
    """Runs of this service for the accuracy page. Names and addresses of plans are not in it: not everyone who reads it may read those."""
    errors: dict[str, list[float]] = {"GPU memory": [], "step time": []}
    for run in runs:
        found = measurement_document(run)["error_frac"]
        for title, key in (("GPU memory", "peak_bytes"), ("step time", "step_s")):
            if found[key] is not None:
                errors[title].append(found[key])
    summaries = [_summary(title, found) for title, found in errors.items() if found]
    return {"runs": len(runs), "summaries": summaries, "rows": [_local_row(run) for run in runs[:LOCAL_SHOWN]], "shown": LOCAL_SHOWN}


def calibration_view(found: Document | None, document: Document) -> dict[str, Any] | None:
    """The one line of an answer: what runs here make of its figures; None where they say nothing."""
    if not found or not found["applied"]:
        return None
    best = document["recommended"]
    memory, time = found["memory"], found["time"]
    return {
        "runs": found["runs"],
        "memory": format_gib(memory["device_bytes"]) if memory else "",
        "memory_was": format_gib(best["memory"]["gpu"]["device_bytes"]),
        "step": seconds(time["step_s"]) if time else "",
        "step_was": seconds(best["time"]["step_s"]),
    }


def _summary(title: str, errors: Sequence[float]) -> dict[str, Any]:
    absolute = [abs(error) for error in errors]
    return {
        "title": title,
        "runs": len(errors),
        "median_error_frac": median(absolute),
        "within_10_frac": sum(error <= 0.1 for error in absolute) / len(errors),
        "within_20_frac": sum(error <= 0.2 for error in absolute) / len(errors),
        "bias_frac": median(errors),
    }


def _local_row(run: StoredMeasurement) -> dict[str, Any]:
    return _row(run) | {"situation": run.predicted.get("situation", "").replace(" | ", ", "), "engine_version": run.engine_version}


def _row(run: StoredMeasurement) -> dict[str, Any]:
    """Figures of a run in words."""
    peak, step, measured_step = _predicted_peak(run), _predicted_step(run), step_of(run)
    return {
        "oom": run.oom,
        "counter": counted_as(run).replace("_expandable", _GROWN) if run.peak_bytes is not None else "",
        "peak": format_gib(run.peak_bytes) if run.peak_bytes is not None else "",
        "peak_predicted": format_gib(peak) if peak is not None else "",
        "peak_error": _percent(error_frac(peak, None if run.oom else run.peak_bytes)),
        "step": seconds(measured_step) if measured_step is not None else "",
        "step_predicted": seconds(step) if step is not None and measured_step is not None else "",
        "step_error": _percent(error_frac(step, measured_step)),
    }


def _percent(frac: float | None) -> str:
    return "" if frac is None else f"{100 * frac:+.1f} %"


def _predicted_peak(run: StoredMeasurement) -> float | None:
    part = parts_of(run.predicted, "memory").get(counted_as(run))
    return None if part is None or run.peak_bytes is None else float(round(part.total))


def _predicted_step(run: StoredMeasurement) -> float | None:
    part = parts_of(run.predicted, "time").get("step")
    return None if part is None else part.total
