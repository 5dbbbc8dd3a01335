"""What the audit page shows: its form, and findings with their figures formatted; no HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain.units import format_gib
from app.services.audit import Audited
from app.web import charts
from app.web.form_view import by_field, form_view
from app.web.forms import Form, FormError
from app.web.wording import plan_label

FIELDS = (
    "model", "config", "gpu", "gpus_per_node", "nodes", "seq_len", "micro_batch", "grad_accum", "optimizer", "precision", "adapter_kind",
    "activation_checkpointing", "tensor_parallel", "pipeline_parallel", "sequence_parallel", "host_memory_gib",
)  # fmt: skip
"""Fields of a plan that the form of an audit shows, all of them optional here."""
OWN = ("existing", "kind", "launcher", "deepspeed")
"""Fields of the form beside those of a plan."""
KINDS = (
    ("", "told from its keys"), ("deepspeed", "ds_config.json"), ("accelerate", "accelerate's YAML"), ("hf_trainer", "TrainingArguments"),
    ("fsdp", "an fsdp_config block"),
)  # fmt: skip
LAUNCHERS = (
    ("", "told from the file"), ("deepspeed", "my script calls deepspeed.initialize"), ("hf_trainer", "the Hugging Face Trainer"),
    ("accelerate", "accelerate launch"),
)  # fmt: skip
WORDS = {"error": "Error", "warning": "Warning", "info": "Note"}
EFFECTS = {
    "fails": "the run fails", "ignored": "the key is ignored", "changed": "something else is done", "slow": "it is slow",
    "memory": "it takes memory",
}  # fmt: skip


def audit_form(values: Mapping[str, str], errors: Sequence[FormError]) -> dict[str, Any]:
    """Fields with what was typed and what is wrong with it."""
    form = Form(values=values, errors=tuple(errors))
    groups = form_view(values, form, {}, fetches=False)["groups"]
    items = {i["field"].name: i | {"field": replace(i["field"], required=False)} for group in groups.values() for i in group}
    return {
        "items": [items[name] for name in FIELDS if name in items],
        "values": dict.fromkeys(OWN, "") | dict(values),
        "wrong": {name: [] for name in OWN} | by_field(errors),
        "kinds": KINDS,
        "launchers": LAUNCHERS,
        "added": "",
    }


def audit_view(found: Audited) -> dict[str, Any]:
    """Findings, files and figures of an audit."""
    document = found.document()
    return {
        "summary": document["summary"],
        "findings": [_finding(entry) for entry in document["findings"]],
        "not_checked": _unchecked(document["not_checked"]),
        "assumed": document["assumed"],
        "predicted": _predicted(document["predicted"]),
        "not_predicted": document["not_predicted"],
        "gain": _gain(document),
        "files": [
            {"name": name, "text": text, "title": title}
            for key, title in (("corrected", "Corrected"), ("minimal", "Minimal: without what says the default"))
            for name, text in document[key].items()
        ],
    }


def _finding(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "word": WORDS[entry["severity"]], "what": EFFECTS[entry["effect"]]}


def _unchecked(entries: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Rules by what they lack."""
    by_need: dict[str, list[str]] = {}
    for entry in entries:
        by_need.setdefault(entry["needs"], []).append(entry["id"])
    return [{"needs": needs, "ids": ", ".join(ids)} for needs, ids in by_need.items()]


def _predicted(candidate: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if candidate is None:
        return None
    gpu, host = candidate["memory"]["gpu"], candidate["memory"]["host_per_node"]
    return {
        "label": plan_label(candidate["settings"]),
        "verdict": candidate["verdict"],
        "bar": charts.memory_bar(gpu),
        "device": format_gib(gpu["device_bytes"]),
        "capacity": format_gib(gpu["capacity_bytes"]),
        "moment": gpu["peak_moment"],
        "host": format_gib(host["peak_bytes"]) if host["peak_bytes"] else "",
        "step": charts.seconds(candidate["time"]["step_s"]),
        "tokens": f"{candidate['time']['tokens_per_s_per_gpu']:,.0f}",
    }


def _gain(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our plan beside the file, in words."""
    gain, ours = document["gain"], document["recommended"]
    if gain is None or ours is None:
        return None
    return {
        "label": plan_label(ours["settings"]),
        "verdict": ours["verdict"],
        "device": format_gib(ours["memory"]["gpu"]["device_bytes"]),
        "step": charts.seconds(ours["time"]["step_s"]),
        "memory": format_gib(abs(gain["memory_bytes"])),
        "less": "less" if gain["memory_bytes"] >= 0 else "more",
        "faster": f"{gain['speedup']:.2f}",
    }
