"""What the answer page shows, made from the plan document: every figure formatted, every order decided, no HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.catalog.gpus import find_gpu
from app.catalog.instances import find_instance
from app.domain.errors import InvalidRequestError
from app.domain.units import format_count, format_gib, format_number
from app.services.what_if import pins_of
from app.web import charts
from app.web.cards import EXACTNESS, card, ledger, share_of, source_of
from app.web.checkpoint_view import checkpoint_view
from app.web.fields import all_fields
from app.web.figures import OF_DOCUMENT, Canvas
from app.web.forms import field_at, to_fields
from app.web.what_if_page import what_if_view
from app.web.wording import action, plan_label

Document = Mapping[str, Any]
VERDICTS = {"fits": "Fits", "tight": "Tight", "does_not_fit": "Does not fit"}
_IDEAL_OF = {"fsdp_full": "zero3", "fsdp_grad_op": "zero2", "hsdp": "zero3"}
LINES_SHOWN, LINES_PREVIEW = 120, 24
_PURPOSES = {
    "ds_config.json": "DeepSpeed's configuration",
    "accelerate.yaml": "for accelerate launch",
    "launch.sh": "starts it on every node",
    "ds_train.py": "a complete training script",
    "fsdp2_train.py": "a complete training script",
    "ddp_train.py": "a complete training script",
}
_STATES = ("parameters", "gradients", "optimizer_states", "adapters")


def answer_view(document: Document) -> dict[str, Any]:
    """Everything the answer's templates need, in the order of the page."""
    best = document["recommended"]
    gpu, request = best["memory"]["gpu"], document["request"]
    current = to_fields(request)
    return {
        "verdict": {"key": document["verdict"], "word": VERDICTS[document["verdict"]], "sentence": _sentence(document)},
        "heading": heading(document),
        "model": _model(document["model"]),
        "binds": _binds(document),
        "shortfall": format_gib(document["shortfall_bytes"]) if document.get("shortfall_bytes") else "",
        "ways_out": [_way_out(way, request, current) for way in document.get("ways_out", [])],
        "memory": charts.memory_bar(gpu),
        "totals": _totals(gpu),
        "moments": charts.moment_bars(gpu),
        "ledger": ledger(gpu["terms"], gpu["device_bytes"]),
        "pools": _pools(best["memory"]),
        "ladder": [_rung(rung) for rung in document["ladder"]],
        "time": _time(best),
        "communication": [_flow(term) for term in best["communication"]["terms"]],
        "ideal": _ideal(document),
        "figures": {name: OF_DOCUMENT[name](document, Canvas(px=480)) for name in ("alternatives", "states")},
        "what_if": what_if_view(document, current),
        "alternatives": [_alternative(c, request, current) for c in [best, *document["alternatives"]]],
        "settings": _settings(best["settings"]),
        "files": [_file(*item) for item in document["files"].items()],
        "trainer_files": [_trainer_file(*item) for item in document.get("dialects", {}).get("hf_auto", {}).items()],
        "checkpoint": None if document["verdict"] == "does_not_fit" else checkpoint_view(document.get("checkpoint")),
        "warnings": [_warning(w) for w in document["warnings"]],
        "search": document["search"],
        "rejected": document["rejected"],
        "sure": _sure(best),
        "cost": best["cost"],
        "engine_version": document["engine_version"],
    }


def heading(document: Document) -> str:
    """Model, recipe and machine in one line."""
    training, settings = document["request"]["training"], document["recommended"]["settings"]
    optimizer = dict(all_fields()["optimizer"].choices).get(training["optimizer"]) or all_fields()["optimizer"].choices[0][1]
    adapter = (
        f" · {training['adapter']['kind'].replace('lora', 'LoRA').replace('q', 'Q')} rank {training['adapter']['rank']}"
        if training["adapter"]
        else ""
    )
    return (
        f"{document['model']['name']} · seq {settings['seq_len']:,} · {optimizer} {training['precision']}{adapter}"
        f" on {settings['nodes']} × {settings['gpus_per_node']} {gpu_names(document['request'])}"
    )


def gpu_names(request: Document) -> str:
    """GPUs of the pools in words, each once."""
    names = []
    for pool in request["cluster"]["pools"]:
        given = pool.get("gpu")
        try:
            key = find_instance(pool["instance"]).gpu if pool.get("instance") else given
            names.append(given["name"] if isinstance(given, dict) else find_gpu(str(key)).name)
        except InvalidRequestError:
            names.append(str(given or pool.get("instance")))  # a saved plan outlives a catalogue entry
    return " + ".join(dict.fromkeys(names))


def _sentence(document: Document) -> str:
    sentence = str(document["summary"]).removeprefix(f"{VERDICTS[document['verdict']]}: ")
    return sentence[:1].upper() + sentence[1:]


def _model(model: Document) -> dict[str, Any]:
    rows = [("parameters", model["total_params"]), ("used by one token", model["active_params"]), ("trained", model["trainable_params"])]
    counts = [{"name": name, "value": format_count(n), "exact": f"{n:,}"} for name, n in rows if n is not None]
    commit = model.get("revision")
    name = f"{model['name']} at commit {commit[:12]}" if commit else model["name"]
    return {"name": name, "counts": counts, "counted_by": model["counted_by"]}


def _binds(document: Document) -> dict[str, str]:
    """What the answer hangs on: the place that overflows, or the largest term at the peak."""
    memory = document["recommended"]["memory"]
    if document["verdict"] == "does_not_fit" and not document.get("shortfall_bytes"):
        for key, words in (("host_per_node", "host memory"), ("nvme_per_node", "disks")):
            pool = memory[key]
            if pool["capacity_bytes"] is not None and pool["peak_bytes"] > pool["capacity_bytes"]:
                return {
                    "text": f"The {words} of a node: {format_gib(pool['peak_bytes'])} needed, {format_gib(pool['capacity_bytes'])} there.",
                    "changes": "",
                }
    gpu = memory["gpu"]
    biggest = max(gpu["terms"], key=lambda t: int(t["bytes"]))
    share = share_of(biggest["bytes"], gpu["device_bytes"])
    text = f"{biggest['name']}, {format_gib(biggest['bytes'])} or {share} of the memory at the peak ({gpu['peak_moment']})."
    return {"text": text, "changes": biggest["changes_it"]}


def _totals(gpu: Document) -> list[dict[str, str]]:
    rows = (
        ("allocated", "peak_allocated_bytes", "live tensors, torch.cuda.max_memory_allocated"),
        ("reserved", "peak_reserved_bytes", "with the allocator's rounding and gaps, torch.cuda.max_memory_reserved"),
        ("expandable", "peak_reserved_expandable_bytes", "reserved, with expandable segments as launch.sh sets them"),
        ("device", "device_bytes", "with the CUDA context and the libraries, what nvidia-smi shows"),
        ("usable", "capacity_bytes", "capacity less the share left free"),
    )
    return [{"name": name, "value": format_gib(gpu[key]), "exact": f"{gpu[key]:,}", "note": note} for name, key, note in rows if key in gpu]


def _pools(memory: Document) -> list[dict[str, Any]]:
    pools = []
    for key, title in (("host_per_node", "Host memory of one node"), ("nvme_per_node", "Disks of one node")):
        bar = charts.pool_bar(title, memory[key])
        if bar:
            pools.append({"title": title, "bar": bar, "ledger": ledger(memory[key]["terms"], memory[key]["peak_bytes"])})
    return pools


def _rung(rung: Document) -> dict[str, Any]:
    step, used = rung.get("step_s"), rung.get("device_bytes")
    return {
        "label": rung["label"],
        "verdict": rung["verdict"],
        "word": VERDICTS[rung["verdict"]],
        "chosen": rung["chosen"],
        "why": rung["why_not"] or ("recommended" if rung["chosen"] else ""),
        "memory": format_gib(used) if used else "",
        "step": charts.seconds(step) if step else "",
        "batch": f"{rung['settings']['micro_batch']} × {rung['settings']['grad_accum']}",
        "checkpointing": rung["settings"]["activation_checkpointing"],
    }


def _time(best: Document) -> dict[str, Any]:
    time = best["time"]
    low, high = time["interval_90_s"]
    rates = [
        ("tokens/s per GPU", format_number(time["tokens_per_s_per_gpu"])),
        ("tokens/s in all", format_number(time["tokens_per_s"])),
        ("model FLOPs utilisation", f"{format_number(100 * time['mfu_frac'])} %"),
        ("90 % interval", f"{charts.seconds(low)} to {charts.seconds(high)}"),
    ]
    cost = best["cost"]
    if cost["usd_per_hour"] is not None:
        rates.append(("USD per hour", f"{cost['usd_per_hour']:,.2f}"))
    if cost["usd_per_billion_tokens"] is not None:
        rates.append(("USD per billion tokens", format_number(cost["usd_per_billion_tokens"])))
    cards = [
        card(t) | {"value": charts.seconds(t["seconds"]), "exact": f"{t['seconds']:.6g} s", "share": share_of(t["seconds"], time["step_s"])}
        for t in time.get("terms", [])
    ]
    return {"bar": charts.time_bar(dict(time)), "rates": rates, "cards": cards, "step": charts.seconds(time["step_s"])}


def _flow(term: Document) -> dict[str, Any]:
    return {
        "name": term["name"],
        "group": term["group_size"],
        "where": "between nodes" if term["spans_nodes"] else "in the node",
        "bytes": format_gib(term["bytes_per_step"]),
        "exact": f"{term['bytes_per_step']:,} bytes",
        "seconds": charts.seconds(term["seconds"]),
        "exposed": charts.seconds(term["exposed_s"]),
        "formula": term["formula"],
        "source": source_of(term["source"]),
    }


def _ideal(document: Document) -> dict[str, Any]:
    """The textbook figures, and what the framework really holds and sends."""
    best, ideal = document["recommended"], document["ideal"]
    mine = _IDEAL_OF.get(best["settings"]["strategy"], best["settings"]["strategy"])
    held = sum(t["bytes"] for t in best["memory"]["gpu"]["terms"] if t["category"] in _STATES)
    words = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
    rows = [
        {
            "label": words[key],
            "states": format_gib(ideal["states_bytes"][key]),
            "traffic": format_gib(ideal["traffic_bytes_per_step"][key]),
            "mine": key == mine,
        }
        for key in words
    ]
    per_step, steps = best["communication"]["bytes_per_step"], best["settings"]["grad_accum"]
    return {
        "rows": rows,
        "label": plan_label(best["settings"]),
        "states": format_gib(held),
        "traffic": format_gib(per_step / steps),
        "step": format_gib(per_step),
        "steps": steps,
    }


def offloaded(settings: Document) -> str:
    """Where optimizer and parameters are, in few words, for a column of a table."""
    optimizer, parameters = settings["offload_optimizer"], settings["offload_parameters"]
    if optimizer == parameters:
        return "none" if optimizer == "none" else f"all on {optimizer}"
    return ", ".join(f"{what} on {where}" for what, where in (("optimizer", optimizer), ("weights", parameters)) if where != "none")


def _alternative(candidate: Document, request: Document, current: dict[str, str]) -> dict[str, Any]:
    settings, time = candidate["settings"], candidate["time"]
    return {
        "label": plan_label(settings),
        "batch": f"{settings['micro_batch']} × {settings['grad_accum']}",
        "checkpointing": settings["activation_checkpointing"],
        "offload": offloaded(settings),
        "memory": format_gib(candidate["memory"]["gpu"]["device_bytes"]),
        "step": charts.seconds(time["step_s"]),
        "speed": format_number(time["tokens_per_s_per_gpu"]),
        "verdict": candidate["verdict"],
        "word": VERDICTS[candidate["verdict"]],
        "pin": action("Use", pins_of(settings), request, current),
    }


def _way_out(way: Document, request: Document, current: dict[str, str]) -> dict[str, Any]:
    return action(way["label"], way["changes"], request, current) | {"fits": way["fits"], "memory": format_gib(way["device_bytes"])}


def _settings(settings: Document) -> list[tuple[str, str]]:
    rows = []
    for name, value in settings.items():
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif name.endswith("_numel"):
            shown = f"{value:,} elements"
        else:
            shown = f"{value:,}" if isinstance(value, int) else str(value)
        rows.append((name.removesuffix("_numel").replace("_", " "), shown))
    return rows


def _file(name: str, text: str) -> dict[str, Any]:
    """A file as far as a page shows it; a long script is in full in its download."""
    lines = text.splitlines()
    shown = lines if len(lines) <= LINES_SHOWN else lines[:LINES_PREVIEW]
    return {
        "name": name,
        "lines": len(lines),
        "purpose": _PURPOSES.get(name, ""),
        "text": "\n".join(shown),
        "more": len(lines) - len(shown),
    }


def _trainer_file(name: str, text: str) -> dict[str, Any]:
    purpose = "with the values the arguments fill in" if name == "ds_config.json" else "the plan as TrainingArguments"
    return {"name": name, "lines": len(text.splitlines()), "purpose": purpose}


def _warning(warning: Document) -> dict[str, str]:
    path = tuple(int(part) if part.isdigit() else part for part in warning["field"].split("."))
    return {key: warning[key] for key in ("severity", "message", "fix")} | {"field": field_at(path)}


def _sure(best: Document) -> dict[str, Any]:
    gpu = best["memory"]["gpu"]
    low, high = gpu["interval_90_bytes"]
    kinds = {word: sum(t["bytes"] for t in gpu["terms"] if t["exactness"] == key) for key, word in EXACTNESS.items()}
    return {
        "probability": f"{format_number(100 * gpu['fit_probability_frac'])} %",
        "low": format_gib(low),
        "high": format_gib(high),
        "kinds": [{"word": word, "value": format_gib(n), "share": share_of(n, gpu["device_bytes"])} for word, n in kinds.items() if n],
    }
