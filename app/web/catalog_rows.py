"""Entries of the catalogue as rows of a table, on a page or in a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.catalog.documents import Kind
from app.domain.errors import InvalidRequestError
from app.domain.units import format_count, format_gib, format_number

_UNKNOWN = "—"
_GPU_HEAD = ("GPU", "usable", "label", "dense bf16", "memory bandwidth", "link, per direction", "host link")
_INSTANCE_HEAD = ("Instance", "GPUs", "host memory", "NVMe", "network", "USD per hour")
_MODEL_HEAD = ("Model", "parameters", "used by one token", "repository")
_GPU_SOURCES = ("memory", "memory", "tflops", "bandwidth", "link", "link")
"""Under which of an entry's sources each of its cells is; the host link's generation comes with the link."""


def _gpu(entry: Mapping[str, Any]) -> dict[str, Any]:
    link, pcie, memory, peak = entry["intra_node_link"], entry["pcie"], entry["memory"], entry["peak_dense_tflops"]["bf16"]
    cells = (
        format_gib(entry["usable_bytes"]),
        f"{memory['marketed']:g} {memory['marketed_label']}",
        _figure(peak, "TFLOP/s"),
        _figure(entry["mem_bandwidth_gbps"], "GB/s"),
        f"{link['type']}, {link['gbps_per_direction']:g} GB/s",
        f"PCIe {pcie['gen']} ×{pcie['lanes']}",
    )
    values = (entry["usable_bytes"], memory["marketed"], peak, entry["mem_bandwidth_gbps"], link["gbps_per_direction"],
              (pcie["gen"] or 0) * (pcie["lanes"] or 0))  # fmt: skip
    sources = [entry["sources"].get(name, []) for name in _GPU_SOURCES]
    return _row(entry, cells, values, f"gpu={entry['key']}") | {"cell_sources": sources}


def _instance(entry: Mapping[str, Any]) -> dict[str, Any]:
    ram, disks, price = entry["cpu_ram"], entry["local_nvme"]["tb_total"], entry["usd_per_hour"]
    cells = (
        f"{entry['gpus']} × {entry['gpu']}",
        _figure(ram, entry["cpu_ram_unit"]),
        _figure(disks, "TB") if disks != 0 else "none",
        _figure(entry["network_gbps_total"], "Gbit/s"),
        f"{price:,.2f} ({entry['usd_date']})" if price is not None else _UNKNOWN,
    )
    values = (f"{entry['gpu']} {entry['gpus']:4d}", ram, disks, entry["network_gbps_total"], price)
    return _row(entry, cells, values, f"instance={entry['key']}") | {"sources": list(entry["sources"])}


def _model(entry: Mapping[str, Any]) -> dict[str, Any]:
    active, total = entry["active_params"], entry["total_params"]
    dense = active is None or active == total
    cells = (format_count(total), "all" if dense else format_count(active), entry["hf_id"] or _UNKNOWN)
    values = (total, total if dense else active, entry["hf_id"])
    return _row(entry, cells, values, f"model={entry['key']}") | {"source": entry["source"]}


def _row(entry: Mapping[str, Any], cells: tuple[str, ...], values: tuple[Any, ...], query: str) -> dict[str, Any]:
    name = entry.get("name") or entry["key"]
    return {
        "key": entry["key"],
        "name": name,
        "cells": cells,
        "values": (name.lower(), *values),
        "cell_sources": [[] for _ in cells],
        "query": query,
        "sources": [],
        "source": "",
        "notes": entry.get("notes", ""),
    }


def column_key(title: str) -> str:
    """A column's name in an address.

    Example:
        >>> column_key("link, per direction")
        'link-per-direction'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower())


def in_order(kind: Kind, entries: Sequence[Mapping[str, Any]], column: str, *, falling: bool) -> list[Mapping[str, Any]]:
    """Entries by a column of the table; what is not known comes last.

    Raises:
        InvalidRequestError: the table has no such column.
    """
    titles, row_of = COLUMNS[kind]
    keys = [column_key(title) for title in titles]
    if column not in keys:
        raise InvalidRequestError.at("sort", msg=f"{kind} have no column {column[:80]!r}", hint=f"sort by {', '.join(keys)}")
    place = keys.index(column)
    rows = [(row_of(entry)["values"][place], entry) for entry in entries]
    known = sorted((row for row in rows if row[0] is not None), key=lambda row: row[0], reverse=falling)
    return [entry for _, entry in known] + [entry for value, entry in rows if value is None]


def _figure(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None else f"{format_number(value)} {unit}"


COLUMNS: dict[Kind, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "gpus": (_GPU_HEAD, _gpu),
    "instances": (_INSTANCE_HEAD, _instance),
    "models": (_MODEL_HEAD, _model),
}
"""Titles of the columns, and what makes a row of an entry: its name, then its ``cells``."""
