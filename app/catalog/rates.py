"""Measured and published rates: links, collectives, host copies, CPU Adam and drives.

Values are in base units (bytes, seconds, bytes/s); ``source`` is a key into the ``sources`` of rates.json and ``basis``
says whether it was measured, modelled, published, recalled or derived. None means not established.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.catalog.data import document
from app.domain.units import GB, parse_quantity

US = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRate:
    """Bus bandwidth of one collective, as nccl-tests defines it.

    Attributes:
        link: kind of link inside the node, or fabric between nodes.
        gpu, gpus, nodes, algo: where it was run; None where not said.
        collective: all_reduce, all_gather, reduce_scatter, p2p, ...
        busbw_bytes_per_s: at a large payload.
        busbw_by_payload: at each payload in bytes; empty where only the large one is known.
        spec_bytes_per_s: rate the link (inside) or the node's network (between) should reach.
        fraction: share of that rate reached.
    """

    link: str
    gpu: str | None
    gpus: int | None
    nodes: int
    algo: str | None
    collective: str
    busbw_bytes_per_s: float | None
    busbw_by_payload: Mapping[int, float]
    spec_bytes_per_s: float | None
    fraction: float | None
    basis: str
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRates:
    """Start-up times of collectives.

    Attributes:
        hop_s: seconds of one hop by link (nvlink, pcie, net), algorithm (ring, tree) and protocol (LL, LL128, Simple).
        base_s: seconds of one call by algorithm and protocol.
        fitted: α and bus bandwidth fitted to whole sweeps.
        source: of hop_s and base_s.
    """

    hop_s: Mapping[str, Mapping[str, Mapping[str, float]]]
    base_s: Mapping[str, Mapping[str, float]]
    fitted: tuple[FittedLatency, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLatency:
    """time = alpha_s + volume / busbw_bytes_per_s over one system's payload sweep."""

    system: str
    alpha_s: float
    busbw_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLinkRate:
    """Pinned copies between host and device, one GPU."""

    link: str
    to_device_bytes_per_s: float | None
    to_host_bytes_per_s: float | None
    both_ways_bytes_per_s: float | None
    spec_bytes_per_s: float | None
    factor: float | None
    basis: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAdamRates:
    """Host memory traffic of one Adam step, in bytes per parameter, which it is bound by, and the pace that was published.

    Attributes:
        bytes_per_param, bytes_per_param_with_copy_back: without and with writing the 16-bit copy.
        seconds_per_billion: one step of a billion parameters on a node (ZeRO-Offload's table).
        grace_gain: how much faster the same step is on a Grace CPU (SuperOffload).
    """

    bytes_per_param: int
    bytes_per_param_with_copy_back: int
    seconds_per_billion: float
    grace_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeRate:
    """Sustained rates of a set of drives."""

    setup: str
    read_bytes_per_s: float
    write_bytes_per_s: float
    basis: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Everything of rates.json that the planner reads."""

    nccl_intra: tuple[CollectiveRate, ...]
    inter_node: tuple[CollectiveRate, ...]
    latency: LatencyRates
    host_device: tuple[HostLinkRate, ...]
    cpu_adam: CpuAdamRates
    nvme: tuple[NvmeRate, ...]


@cache
def load_rates() -> Rates:
    """Rates read from publications, in base units."""
    data = document("rates")
    return Rates(
        nccl_intra=tuple(_collective(row, spec="spec_per_direction", fraction="fraction") for row in data["nccl_intra_node"]),
        inter_node=tuple(_collective(row, spec="node_nic_gbs", fraction="fraction_of_node_nic") for row in data["nccl_inter_node"]),
        latency=_latency(data["latency"]),
        host_device=tuple(_host_link(row) for row in data["host_device"]),
        cpu_adam=_cpu_adam(data["cpu_adam"]),
        nvme=tuple(_nvme(row) for row in data["nvme"]),
    )


def _collective(row: Mapping[str, Any], *, spec: str, fraction: str) -> CollectiveRate:
    by_payload = row.get("busbw_by_payload") or {}
    return CollectiveRate(
        link=row.get("link") or row["fabric"],
        gpu=row.get("gpu"),
        gpus=row.get("gpus"),
        nodes=row.get("nodes") or 1,
        algo=row.get("algo"),
        collective=row["collective"],
        busbw_bytes_per_s=_rate(row.get("busbw")),
        busbw_by_payload={int(parse_quantity(size)): float(bw * GB) for size, bw in by_payload.items()},
        spec_bytes_per_s=_rate(row.get(spec)),
        fraction=row.get(fraction),
        basis=row["basis"],
        source=row["source"],
    )


def _latency(data: Mapping[str, Any]) -> LatencyRates:
    model = data["nccl_model_us"]
    return LatencyRates(
        hop_s={link: {algo: _seconds(by) for algo, by in algos.items()} for link, algos in model["hop"].items()},
        base_s={algo: _seconds(by) for algo, by in model["base"].items()},
        fitted=tuple(
            FittedLatency(system=f["system"], alpha_s=f["alpha_us"] * US, busbw_bytes_per_s=float(f["busbw"] * GB)) for f in data["fitted"]
        ),
        source=model["source"],
    )


def _host_link(row: Mapping[str, Any]) -> HostLinkRate:
    return HostLinkRate(
        link=row["link"],
        to_device_bytes_per_s=_rate(row.get("h2d")),
        to_host_bytes_per_s=_rate(row.get("d2h")),
        both_ways_bytes_per_s=_rate(row.get("both_directions_each")),
        spec_bytes_per_s=_rate(row.get("spec")),
        factor=row.get("factor"),
        basis=row["basis"],
        source=row["source"],
    )


def _cpu_adam(data: Mapping[str, Any]) -> CpuAdamRates:
    per_param = data["bytes_per_param"]
    return CpuAdamRates(
        bytes_per_param=per_param["total"],
        bytes_per_param_with_copy_back=per_param["with_16bit_copy_back"],
        seconds_per_billion=next(row["value"]["1B"] for row in data["published"] if "CPU-Adam seconds" in row["what"]),
        grace_gain=float(next(row["value"] for row in data["published"] if "GraceAdam" in row["what"]).split("x")[0]),
    )


def _nvme(row: Mapping[str, Any]) -> NvmeRate:
    return NvmeRate(
        setup=row["setup"],
        read_bytes_per_s=float(row["read"] * GB),
        write_bytes_per_s=float(row["write"] * GB),
        basis=row["basis"],
        source=row["source"],
    )


def _rate(gb_per_s: float | None) -> float | None:
    return None if gb_per_s is None else float(gb_per_s * GB)


def _seconds(by_protocol: Mapping[str, float]) -> dict[str, float]:
    return {protocol: us * US for protocol, us in by_protocol.items()}
