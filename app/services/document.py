"""The JSON document of a plan: the contract's names, built from the domain's result."""

from __future__ import annotations

from functools import cache
from typing import Any

from app import ENGINE_VERSION
from app.domain.checkpoint.result import CheckpointPlan, Export
from app.domain.plan import Candidate, GpuMemory, Plan, PoolMemory, Settings, StepTime, TermResult
from app.domain.sources import SOURCES
from app.services.request import PlanRequest


def plan_document(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """The answer of ``POST /plan``; of other models on the same GPUs only where there are any."""
    asked = request.model_dump(mode="json", exclude=set() if request.companions else {"companions"})
    beside = {"companions": [_fields(companion) for companion in plan.companions]} if plan.companions else {}
    return {
        "id": None,
        "engine_version": ENGINE_VERSION,
        "request": asked,
        "verdict": plan.verdict,
        "summary": plan.summary,
        "shortfall_bytes": plan.shortfall_bytes,
        "model": _fields(plan.model),
        **beside,
        "recommended": candidate_document(plan.recommended),
        "ideal": {"states_bytes": plan.ideal_states_bytes, "traffic_bytes_per_step": plan.ideal_traffic_bytes},
        "alternatives": [candidate_document(c) for c in plan.alternatives],
        "ladder": [_fields(rung) for rung in plan.ladder],
        "ways_out": [_fields(way) for way in plan.ways_out],
        "rejected": [_fields(r) for r in plan.rejected],
        "search": {"candidates": plan.candidates, "feasible": plan.feasible, "elapsed_ms": round(plan.elapsed_ms, 2)},
        "warnings": [_fields(w) for w in plan.warnings],
        "files": {a.filename: a.text for a in plan.files},
    }


def candidate_document(candidate: Candidate) -> dict[str, Any]:
    """One candidate: settings, memory, communication, time, cost."""
    return {
        "settings": _settings(candidate.settings),
        "verdict": candidate.verdict,
        "memory": {"gpu": _gpu(candidate.gpu), "host_per_node": _pool(candidate.host), "nvme_per_node": _pool(candidate.nvme)},
        "communication": {
            "terms": [_fields(t) | {"source": _cite(t.source)} for t in candidate.communication],
            "bytes_per_step": _sent_bytes(candidate),
        },
        "time": _time(candidate.time),
        "cost": _cost(candidate),
    }


def figures_document(plan: Plan) -> dict[str, Any]:
    """What a row of a sweep shows: of the answer the totals, under the same names and in the same places, without terms and texts."""
    best = plan.recommended
    return {
        "engine_version": ENGINE_VERSION,
        "verdict": plan.verdict,
        "summary": plan.summary,
        "shortfall_bytes": plan.shortfall_bytes,
        "model": _fields(plan.model),
        "recommended": {
            "settings": _settings(best.settings),
            "verdict": best.verdict,
            "memory": {"gpu": _gpu_totals(best.gpu), "host_per_node": _pool_totals(best.host), "nvme_per_node": _pool_totals(best.nvme)},
            "communication": {"bytes_per_step": _sent_bytes(best)},
            "time": {name: value for name, value in _time_totals(best.time).items() if name != "terms"},
            "cost": _cost(best),
        },
        "warnings": [{"code": warning.code} for warning in plan.warnings],
    }


def checkpoint_document(checkpoint: CheckpointPlan) -> dict[str, Any]:
    """Files and bytes of one save, and what can be done with it."""
    served = checkpoint.inference
    return {
        "layout": checkpoint.layout,
        "written_by": checkpoint.written_by,
        "per_save_bytes": checkpoint.per_save_bytes,
        "per_rank_bytes": checkpoint.per_rank_bytes,
        "files": [_fields(f) for f in checkpoint.files],
        "terms": [_bytes_term(t) for t in checkpoint.terms],
        "exports": [_export(e) for e in checkpoint.exports],
        "resume": _fields(checkpoint.resume),
        "inference": {
            "weights": _bytes_term(served.weights),
            "cache_per_token": _bytes_term(served.cache_per_token) if served.cache_per_token else None,
            "how": served.how,
        },
        "notes": checkpoint.notes,
    }


def _export(export: Export) -> dict[str, Any]:
    return {
        "title": export.title,
        "commands": export.commands,
        "host_bytes": int(export.host.value),
        "host": _bytes_term(export.host),
        "output_bytes": export.output_bytes,
    }


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass; their values are not copied, unlike ``asdict``'s."""
    return {name: getattr(record, name) for name in record.__slots__}


def _settings(settings: Settings) -> dict[str, Any]:
    return _fields(settings) | {"data_parallel": settings.dp}


def _sent_bytes(candidate: Candidate) -> int:
    return sum(t.bytes_per_step for t in candidate.communication)


def _cost(candidate: Candidate) -> dict[str, Any]:
    return {"usd_per_hour": candidate.usd_per_hour, "usd_per_billion_tokens": candidate.usd_per_billion_tokens}


def _gpu(gpu: GpuMemory) -> dict[str, Any]:
    return {
        "terms": [_bytes_term(t) for t in gpu.terms],
        "moments": [
            {"name": m.name, "allocated_bytes": m.allocated_bytes,
             "terms": [{"name": t.name, "category": t.category, "bytes": int(t.value), "exactness": t.exactness} for t in m.terms]}
            for m in gpu.moments
        ],
    } | _gpu_totals(gpu)  # fmt: skip


def _gpu_totals(gpu: GpuMemory) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": gpu.peak_allocated_bytes, "peak_reserved_bytes": gpu.peak_reserved_bytes, "device_bytes": gpu.device_bytes,
        "peak_reserved_expandable_bytes": gpu.expandable_bytes, "needed_bytes": gpu.needed_bytes,
        "peak_moment": gpu.peak_moment, "busiest_rank": gpu.busiest_rank, "capacity_bytes": gpu.capacity_bytes,
        "fit_probability_frac": round(gpu.fit_probability_frac, 4),
        "interval_90_bytes": list(gpu.interval_90_bytes),
    }  # fmt: skip


def _pool(pool: PoolMemory) -> dict[str, Any]:
    return {"terms": [_bytes_term(t) for t in pool.terms]} | _pool_totals(pool)


def _pool_totals(pool: PoolMemory) -> dict[str, Any]:
    return {"peak_bytes": pool.peak_bytes, "capacity_bytes": pool.capacity_bytes}


def _time(time: StepTime) -> dict[str, Any]:
    terms = [_described(t) | {"seconds": t.value} for t in time.terms]
    return _time_totals(time) | {"terms": terms}


def _time_totals(time: StepTime) -> dict[str, Any]:
    return _fields(time) | {"interval_90_s": list(time.interval_90_s)}


def _bytes_term(term: TermResult) -> dict[str, Any]:
    return _described(term) | {"bytes": int(term.value)}


def _described(term: TermResult) -> dict[str, Any]:
    return {
        "name": term.name, "category": term.category, "moment": term.moment, "formula": term.formula, "equation": term.equation,
        "source": _cite(term.source), "exactness": term.exactness, "changes_it": term.changes_it,
    }  # fmt: skip


@cache
def _cite(key: str) -> str:
    found = SOURCES[key]
    return f"{found.title} <{found.url}>" if found.url else found.title
