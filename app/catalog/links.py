"""Links as the α–β model needs them, from the rates that were measured: see rates.json for every figure and its source."""

from __future__ import annotations

import re
from functools import lru_cache
from statistics import median

from app.catalog.rates import CollectiveRate, load_rates
from app.domain.cluster.links import Link

# Per direction and GPU, decimal: NVIDIA's NVLink generations, PCI-SIG lane rates x16, AMD Infinity Fabric.
LINK_BYTES_PER_S = {
    "nvlink2": 150e9,
    "nvlink3": 300e9,
    "nvlink4": 450e9,
    "nvlink5": 900e9,
    "pcie3": 15.75e9,
    "pcie4": 31.5e9,
    "pcie5": 63e9,
    "pcie6": 126e9,
    "xgmi": 448e9,
}

_RINGS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
_IN_SWITCH_RANKS = {"nvlink4": 5, "nvlink5": 6}
"""Fewest GPUs for which NCCL reduces in the switch: more than 4 on H200, more than 5 on B200 (ml-engineering)."""


@lru_cache(maxsize=256)
def link_name(text: str) -> str:
    """Short name of a link: ``NVLink4 (18 links, NVSwitch)`` gives nvlink4, ``xGMI, 7 links`` xgmi.

    Example:
        >>> link_name("NVLink4 (18 links, NVSwitch)"), link_name("PCIe4, or NVLink3 bridge for 2 GPUs"), link_name("PCIe 5.0")
        ('nvlink4', 'pcie4', 'pcie5')
    """
    joined = re.sub(r"[^a-z0-9]", "", re.split(r"[,(+]", text.lower())[0])
    return next((name for name in LINK_BYTES_PER_S if joined.startswith(name)), joined)


@lru_cache(maxsize=256)
def intra_node_link(name: str, bytes_per_s: float, gpus: int, *, p2p: bool) -> Link:
    """Link between the devices of one node.

    Args:
        name: short name, see ``link_name``.
        bytes_per_s: rate per direction and GPU.
        gpus: devices that share it.
        p2p: whether devices read each other directly over PCIe; else data go through host memory.
    """
    pcie = name.startswith("pcie")
    latency, hop = load_rates().latency, load_rates().latency.hop_s["pcie" if pcie else "nvlink"]["ring"]["Simple"]
    frac = _pcie_frac(gpus, p2p=p2p) if pcie else _ring_frac(name)
    switch = _in_switch_frac(name)
    return Link(
        name=name, bytes_per_s=bytes_per_s * frac, latency_s=latency.base_s["ring"]["Simple"], hop_s=hop,
        in_switch_bytes_per_s=bytes_per_s * switch, in_switch_ranks=_IN_SWITCH_RANKS.get(name, 0) if switch else 0,
        pairwise=name == "xgmi",
    )  # fmt: skip


@lru_cache(maxsize=256)
def inter_node_link(nic_bytes_per_s: float) -> Link:
    """Link between nodes: what large collectives reach of all NICs of a node together, and the start-up that a sweep showed."""
    rates = load_rates()
    hop = rates.latency.hop_s
    reached = [r.fraction for r in rates.inter_node if r.collective == "all_reduce" and r.fraction]
    # The sweep over 4 nodes of 8: what its start-up time holds beside the steps of a tree.
    sweep = next(f for f in rates.latency.fitted if f.system.startswith("4 x 8"))
    steps = 2 * 7 * hop["nvlink"]["ring"]["Simple"] + 2 * 2 * hop["net"]["tree"]["Simple"]
    return Link(
        name="network", bytes_per_s=nic_bytes_per_s * median(reached), latency_s=sweep.alpha_s - steps,
        hop_s=hop["net"]["ring"]["Simple"], tree_hop_s=hop["net"]["tree"]["Simple"],
    )  # fmt: skip


@lru_cache(maxsize=256)
def host_link_bytes_per_s(pcie_generation: int, *, coherent: bool) -> float:
    """Measured rate of pinned copies between host and device, bytes/s: sixteen PCIe lanes, or the coherent link of a Grace CPU."""
    rates = {r.link: r.to_device_bytes_per_s for r in load_rates().host_device if r.to_device_bytes_per_s}
    wanted = "NVLink-C2C (GH200)" if coherent else f"PCIe{pcie_generation} x16"
    return rates.get(wanted) or rates["PCIe4 x16"]


def host_memory_bytes_per_s(gpus: int, *, coherent: bool) -> float:
    """Sustained RAM bandwidth of one node that Adam on the host reaches, bytes/s; a Grace CPU is part of each superchip."""
    adam = load_rates().cpu_adam
    one = adam.bytes_per_param * 1e9 / adam.seconds_per_billion
    return one * adam.grace_gain * max(1, gpus // 2) if coherent else one


@lru_cache(maxsize=256)
def nvme_bytes_per_s(pcie_generation: int) -> tuple[float, float]:
    """Read and write rates of the four drives a node of this generation usually has, bytes/s."""
    wanted = f"4 x Gen{min(5, max(4, pcie_generation))} RAID0"
    row = next(r for r in load_rates().nvme if r.setup.startswith(wanted))
    return row.read_bytes_per_s, row.write_bytes_per_s


def _fractions(rows: list[CollectiveRate]) -> list[float]:
    return [r.fraction for r in rows if r.fraction]


def _ring_frac(name: str) -> float:
    """Share of the per-direction rate that rings reach on this generation, or on all where it was not measured."""
    rows = [r for r in load_rates().nccl_intra if r.collective in _RINGS and "NVLS" not in (r.algo or "").replace("NVLS off", "")]
    mine = _fractions([r for r in rows if link_name(r.link) == name])
    return median(mine or _fractions([r for r in rows if "pcie" not in link_name(r.link)]))


def _in_switch_frac(name: str) -> float:
    return next((r.fraction for r in load_rates().nccl_intra if r.algo == "NVLS" and link_name(r.link) == name and r.fraction), 0.0)


def _pcie_frac(gpus: int, *, p2p: bool) -> float:
    """Share that rings reach over PCIe: fewer devices crowd the bridges less, and without P2P data pass through host memory twice."""
    rows = [r for r in load_rates().nccl_intra if link_name(r.link).startswith("pcie") and r.gpus and (r.gpu != "rtx-5090") is p2p]
    sizes = sorted({r.gpus for r in rows if r.gpus})
    size = next((s for s in sizes if s >= gpus), sizes[-1])
    return median(_fractions([r for r in rows if r.gpus == size]))
