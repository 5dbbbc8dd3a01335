"""The catalogue: tables for a browser, the same as JSON for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from app.catalog.documents import Kind, catalog_document
from app.domain.units import format_count, format_gib, format_number
from app.web.api import json_response
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.schemas import PAGE, CatalogOut, problems

router = APIRouter(tags=["catalogue"])
KINDS = {"gpus": "GPUs", "instances": "Instances", "models": "Models"}
_UNKNOWN = "—"


@router.get("/catalog", include_in_schema=False)
def get_catalogues(request: Request) -> Response:
    """What presets there are."""
    counts = {kind: len(catalog_document(kind)[kind]) for kind in ("gpus", "instances", "models")}
    if "application/json" in request.headers.get("accept", "") and not prefers_html(request):
        return json_response({"links": {kind: f"/catalog/{kind}" for kind in counts}, "counts": counts}, headers={"vary": "Accept"})
    return page(request, "catalog.html", kinds=KINDS, counts=counts)


@router.get(
    "/catalog/{kind}",
    responses={200: {"model": CatalogOut, "content": PAGE}, **problems(422, 429)},
    summary="Presets, each figure with its source",
    response_model=None,
)
def get_catalog(request: Request, kind: Kind) -> Response:
    """GPUs, instances or models that can be named in a request. A browser gets them as a page."""
    document = catalog_document(kind)
    if not prefers_html(request):
        return json_response(document, headers={"vary": "Accept"})
    head, row = {"gpus": (_GPU_HEAD, _gpu), "instances": (_INSTANCE_HEAD, _instance), "models": (_MODEL_HEAD, _model)}[kind]
    return page(
        request,
        "catalog_kind.html",
        kind=kind,
        title=KINDS[kind],
        head=head,
        rows=[row(entry) for entry in document[kind]],
        sources=document.get("sources", {}),
        conventions=document.get("conventions", {}),
    )


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
