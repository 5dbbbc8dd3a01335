"""What differs between the documents of several plans, one row a figure.

Documents are read leniently: a saved one may come from an engine that knew fewer figures than today's.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

Document = Mapping[str, Any]
SECTIONS = (
    "verdict", "model", "request", "settings", "gpu_memory", "host_memory", "nvme_memory",
    "communication", "time", "cost", "warnings",
)  # fmt: skip
MAX_DIFF_LINES = 400
_MODEL = ("name", "total_params", "active_params", "trainable_params", "counted_by", "revision")
_TOTALS = (
    "peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "needed_bytes",
    "peak_moment", "capacity_bytes", "fit_probability_frac",
)  # fmt: skip
_TIMES = (
    "step_s", "compute_s", "exposed_communication_s", "optimizer_s", "offload_s",
    "tokens_per_s_per_gpu", "tokens_per_s", "mfu_frac",
)  # fmt: skip
_POOLS = {"gpu_memory": "gpu", "host_memory": "host_per_node", "nvme_memory": "nvme_per_node"}
_HEADER = re.compile(r"# (Written by Shardplan|Plan:) ")
_Figure = tuple[str, str, str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of several plans.

    Attributes:
        section: which part of the answer it is of; one of ``SECTIONS``.
        key: its name there.
        unit: ``bytes``, ``s``, ``frac``, or empty for a count or a word.
        values: what each plan has, in the order of the plans; None where it has none.
        differs: not all are alike.
    """

    section: str
    key: str
    unit: str
    values: tuple[Any, ...]
    differs: bool


def rows(documents: Sequence[Document]) -> tuple[Row, ...]:
    """Every figure that one of the plans has, in the order of ``SECTIONS``."""
    tables = [{figure[:2]: figure[2:] for figure in _figures(document)} for document in documents]
    keys = sorted(dict.fromkeys(chain.from_iterable(tables)), key=lambda key: SECTIONS.index(key[0]))
    return tuple(_row(key, tables) for key in keys)


def file_changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[dict[str, str]]:
    """Files that differ, with their lines; the header lines that name the engine and the saved plan are not compared."""
    found = []
    for name in dict.fromkeys((*then, *now)):
        before, after = (_lines(files.get(name, "")) for files in (then, now))
        if before == after and (name in then) == (name in now):
            continue
        status = "added" if name not in then else "removed" if name not in now else "changed"
        lines = list(difflib.unified_diff(before, after, "then", "now", lineterm="", n=2)) if status == "changed" else []
        more = len(lines) - MAX_DIFF_LINES
        shown = lines[:MAX_DIFF_LINES] + ([f"({more} more lines)"] if more > 0 else [])
        found.append({"name": name, "status": status, "diff": "\n".join(shown)})
    return found


def terms_of(document: Document, section: str) -> dict[str, Document]:
    """Terms of a section by the name their rows have; a name that comes twice is numbered. Most sections have none."""
    if section not in (*_POOLS, "time", "communication"):
        return {}
    best = document.get("recommended") or {}
    holder, name = (best.get("memory") or {}, _POOLS[section]) if section in _POOLS else (best, section)
    place = holder.get(name) or {}
    named: dict[str, Document] = {}
    for term in place.get("terms") or ():
        key, number = term["name"], 2
        while key in named:
            key, number = f"{term['name']} ({number})", number + 1
        named[key] = term
    return named


def alike(one: Any, other: Any) -> bool:
    """Equal, but for what rounding on another processor does to a float."""
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    if numbers and float in (type(one), type(other)):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _row(key: tuple[str, str], tables: Sequence[Mapping[tuple[str, str], tuple[str, Any]]]) -> Row:
    values = tuple(table[key][1] if key in table else None for table in tables)
    unit = next(table[key][0] for table in tables if key in table)
    differs = any(not alike(values[0], value) for value in values[1:])
    return Row(section=key[0], key=key[1], unit=unit, values=values, differs=differs)


def _figures(document: Document) -> Iterator[_Figure]:
    """Section, key, unit and value of all that is compared."""
    best = document.get("recommended") or {}
    yield "verdict", "verdict", "", document.get("verdict")
    yield "verdict", "shortfall_bytes", "bytes", document.get("shortfall_bytes") or 0
    yield from _picked("model", document.get("model") or {}, _MODEL)
    yield from (("request", key, _unit(key), value) for key, value in _flat(document.get("request") or {}))
    yield from _picked("settings", best.get("settings") or {}, tuple(best.get("settings") or ()))
    for section, place in _POOLS.items():
        memory = (best.get("memory") or {}).get(place) or {}
        yield from _picked(section, memory, _TOTALS if place == "gpu" else ("peak_bytes", "capacity_bytes"))
        yield from ((section, name, "bytes", term["bytes"]) for name, term in terms_of(document, section).items())
    yield from _picked("time", best.get("time") or {}, _TIMES)
    yield from (("time", name, "s", term["seconds"]) for name, term in terms_of(document, "time").items())
    yield from _picked("communication", best.get("communication") or {}, ("bytes_per_step",))
    for name, flow in terms_of(document, "communication").items():
        yield "communication", name, "bytes", flow["bytes_per_step"]
        yield "communication", f"{name}, exposed", "s", flow["exposed_s"]
    yield from _picked("cost", best.get("cost") or {}, tuple(best.get("cost") or ()))
    yield from _warnings(document.get("warnings") or ())


def _picked(section: str, record: Document, keys: Sequence[str]) -> Iterator[_Figure]:
    yield from ((section, key, _unit(key), record[key]) for key in keys if key in record)


def _warnings(warnings: Sequence[Document]) -> Iterator[_Figure]:
    """One row a code: the messages under it, as a code may warn of several fields."""
    said: dict[str, list[str]] = {}
    for warning in warnings:
        said.setdefault(warning["code"], []).append(f"{warning['severity']}: {warning['message']}")
    yield from (("warnings", code, "", " ".join(messages)) for code, messages in said.items())


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a request by their path; what is null is left open and says nothing."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{number}]")
    elif value is not None:
        yield path, value


def _unit(key: str) -> str:
    if key.endswith("_bytes") or key == "bytes_per_step":
        return "bytes"
    if key.endswith("_frac"):
        return "frac"
    return "s" if key.endswith("_s") and "per_s" not in key else ""


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not _HEADER.match(line)]
