"""Entries of the catalogue as rows of a table, on a page or in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.catalog.documents import Kind
from app.domain.units import format_count, format_gib, format_number

_UNKNOWN = "—"
_GPU_HEAD = ("GPU", "usable", "label", "dense bf16", "memory bandwidth", "link, per direction", "host link")
_INSTANCE_HEAD = ("Instance", "GPUs", "host memory", "NVMe", "network", "USD per hour")
_MODEL_HEAD = ("Model", "parameters", "used by one token", "repository")


def _gpu(entry: Mapping[str, Any]) -> dict[str, Any]:
    link, pcie, memory = entry["intra_node_link"], entry["pcie"], entry["memory"]
    cells = (
        format_gib(entry["usable_bytes"]),
        f"{memory['marketed']:g} {memory['marketed_label']}",
        _figure(entry["peak_dense_tflops"]["bf16"], "TFLOP/s"),
        _figure(entry["mem_bandwidth_gbps"], "GB/s"),
        f"{link['type']}, {link['gbps_per_direction']:g} GB/s",
        f"PCIe {pcie['gen']} ×{pcie['lanes']}",
    )
    keys = dict.fromkeys(key for listed in entry["sources"].values() for key in listed)
    return _row(entry, cells, f"gpu={entry['key']}", list(keys))


def _instance(entry: Mapping[str, Any]) -> dict[str, Any]:
    ram, disks, price = entry["cpu_ram"], entry["local_nvme"]["tb_total"], entry["usd_per_hour"]
    cells = (
        f"{entry['gpus']} × {entry['gpu']}",
        _figure(ram, entry["cpu_ram_unit"]),
        _figure(disks, "TB") if disks != 0 else "none",
        _figure(entry["network_gbps_total"], "Gbit/s"),
        f"{price:,.2f} ({entry['usd_date']})" if price is not None else _UNKNOWN,
    )
    return _row(entry, cells, f"instance={entry['key']}", list(entry["sources"]))


def _model(entry: Mapping[str, Any]) -> dict[str, Any]:
    active = entry["active_params"]
    dense = active is None or active == entry["total_params"]
    cells = (format_count(entry["total_params"]), "all" if dense else format_count(active), entry["hf_id"] or _UNKNOWN)
    return _row(entry, cells, f"model={entry['key']}", []) | {"source": entry["source"]}


def _row(entry: Mapping[str, Any], cells: tuple[str, ...], query: str, sources: list[str]) -> dict[str, Any]:
    return {
        "key": entry["key"],
        "name": entry.get("name") or entry["key"],
        "cells": cells,
        "query": query,
        "sources": sources,
        "source": "",
        "notes": entry.get("notes", ""),
    }


def _figure(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None else f"{format_number(value)} {unit}"


COLUMNS: dict[Kind, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "gpus": (_GPU_HEAD, _gpu),
    "instances": (_INSTANCE_HEAD, _instance),
    "models": (_MODEL_HEAD, _model),
}
"""Titles of the columns, and what makes a row of an entry: its name, then its ``cells``."""
