"""Instances and whole machines: GPUs of a node, host memory, disks, network and price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.catalog.data import Index, document
from app.domain.errors import Loc
from app.domain.units import GB, GIB

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One kind of node. A figure that is not established is None.

    Attributes:
        key, name, provider: what it goes by and who offers it.
        gpu: catalogue key of its GPUs.
        gpus_per_node: how many it has.
        vcpus: hardware threads.
        host_memory_bytes: memory of the node.
        nvme_count, nvme_bytes: local drives and their total.
        inter_node_bytes_per_s: accelerator network of the whole node, one direction.
        intra_node_link: kind of link between its GPUs.
        usd_per_hour, usd_date, usd_note: on-demand price of the node and when it was read.
        sources: keys into the ``sources`` of instances.json.
        notes: caveats.
    """

    key: str
    name: str
    provider: str
    gpu: str
    gpus_per_node: int
    vcpus: int | None
    host_memory_bytes: int | None
    nvme_count: int | None
    nvme_bytes: int | None
    inter_node_bytes_per_s: float | None
    intra_node_link: str
    usd_per_hour: float | None
    usd_date: str | None
    usd_note: str
    sources: tuple[str, ...]
    notes: str


@cache
def load_instances() -> tuple[InstanceSpec, ...]:
    """Every instance of the catalogue, in its order."""
    return tuple(_read(entry) for entry in document("instances")["nodes"])


def find_instance(name: str, loc: Loc = ("instance",)) -> InstanceSpec:
    """The instance of that catalogue key (``aws-p5.48xlarge``) or provider's name (``p5.48xlarge``).

    Raises:
        InvalidRequestError: unknown; at ``loc``, with the nearest names.
    """
    return _index().find(name, loc)


@cache
def _index() -> Index[InstanceSpec]:
    return Index("instance", load_instances(), key_of=lambda node: node.key, names_of=lambda node: (node.key, node.name))


def _read(entry: Mapping[str, Any]) -> InstanceSpec:
    nvme, ram, network = entry["local_nvme"], entry["cpu_ram"], entry["network_gbps_total"]
    return InstanceSpec(
        key=entry["key"],
        name=entry["name"],
        provider=entry["provider"],
        gpu=entry["gpu"],
        gpus_per_node=entry["gpus"],
        vcpus=entry["vcpus"],
        host_memory_bytes=None if ram is None else round(ram * {"GiB": GIB, "GB": GB}[entry["cpu_ram_unit"]]),
        nvme_count=nvme["count"],
        nvme_bytes=None if nvme["tb_total"] is None else round(nvme["tb_total"] * 1000 * GB),
        inter_node_bytes_per_s=None if network is None else network * float(GB) / BITS_PER_BYTE,
        intra_node_link=entry["intra_node_link"],
        usd_per_hour=entry["usd_per_hour"],
        usd_date=entry["usd_date"],
        usd_note=entry["usd_note"],
        sources=tuple(entry["sources"]),
        notes=entry["notes"],
    )
