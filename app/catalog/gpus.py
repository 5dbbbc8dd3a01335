"""GPUs: what one device can hold, compute and move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from app.catalog.data import Index, document
from app.domain.errors import Loc
from app.domain.units import GB, MIB

DRIVER_RESERVE_FRAC = 0.006
"""Share of the driver's total that torch does not report, where no torch figure is known (conventions of gpus.json)."""

PCIE_BYTES_PER_S_PER_LANE = {3: 0.984375e9, 4: 1.96875e9, 5: 3.9375e9}
"""Rate of one lane in one direction: 8, 16 and 32 GT/s, less 128b/130b coding, as in the links of gpus.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device as a framework sees it.

    Attributes:
        key, name, aliases: what it goes by.
        vendor, architecture: ``nvidia``, ``amd`` or ``intel``; generation.
        memory_bytes: what ``torch.cuda.get_device_properties().total_memory`` gives, as far as known.
        marketed_bytes: what the label says.
        peak_flops: dense FLOPs/s by dtype (fp32, tf32, fp16, bf16, fp8, fp4); a dtype without a figure is absent.
        achieved_flops: FLOPs/s of the best measured matrix product by dtype; empty where none was measured.
        hbm_bytes_per_s: memory bandwidth; None where not established.
        link: kind of link to the other GPUs of the node.
        link_bytes_per_s: its rate per direction and GPU.
        p2p: how peers reach each other: nvlink, nvlink-pair, nvlink-bridge, pcie, xgmi, roce or driver-disabled.
        pcie_gen, pcie_lanes: link to the host.
        supports: dtypes with a native compute path, of bf16, fp8 and fp4.
        sources: keys into the ``sources`` of gpus.json by figure.
        notes: caveats.
    """

    key: str
    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    memory_bytes: int
    marketed_bytes: int
    peak_flops: Mapping[str, float]
    achieved_flops: Mapping[str, float]
    hbm_bytes_per_s: float | None
    link: str
    link_bytes_per_s: float
    p2p: str
    pcie_gen: int
    pcie_lanes: int
    supports: frozenset[str]
    sources: Mapping[str, tuple[str, ...]]
    notes: str

    @property
    def pcie_bytes_per_s(self) -> float:
        """Rate of the host link in one direction, before protocol losses."""
        return PCIE_BYTES_PER_S_PER_LANE[self.pcie_gen] * self.pcie_lanes


@cache
def load_gpus() -> tuple[GpuSpec, ...]:
    """Every GPU of the catalogue, in its order."""
    return tuple(_read(entry) for entry in document("gpus")["gpus"])


def find_gpu(name: str, loc: Loc = ("gpu",)) -> GpuSpec:
    """The GPU of that key, name or alias, in any case and punctuation.

    Raises:
        InvalidRequestError: unknown, or several go by it; at ``loc``, with the nearest names.
    """
    return _index().find(name, loc)


@cache
def _index() -> Index[GpuSpec]:
    return Index("GPU", load_gpus(), key_of=lambda gpu: gpu.key, names_of=lambda gpu: (gpu.key, gpu.name, *gpu.aliases))


def usable_bytes(memory: Mapping[str, Any]) -> int:
    """Bytes torch can see of a device: torch's own figure, else the driver's less its reserve, else the label.

    Args:
        memory: the ``memory`` block of an entry of gpus.json.

    Example:
        >>> usable_bytes({"torch_total_mib": 81089, "driver_total_mib": 81559, "marketed_bytes": 0}) / 2**20
        81089.0
    """
    if memory["torch_total_mib"]:
        return int(memory["torch_total_mib"] * MIB)
    if memory["driver_total_mib"]:
        return int(memory["driver_total_mib"] * MIB * (1 - DRIVER_RESERVE_FRAC))
    return int(memory["marketed_bytes"])


def _read(entry: Mapping[str, Any]) -> GpuSpec:
    bandwidth = entry["mem_bandwidth_gbps"]
    achieved = entry["matmul_achieved_tflops"] or {}
    return GpuSpec(
        key=entry["key"],
        name=entry["name"],
        aliases=tuple(entry["aliases"]),
        vendor=entry["vendor"],
        architecture=entry["architecture"],
        memory_bytes=usable_bytes(entry["memory"]),
        marketed_bytes=entry["memory"]["marketed_bytes"],
        peak_flops=_flops(entry["peak_dense_tflops"]),
        achieved_flops=_flops({dtype: achieved.get(dtype) for dtype in ("bf16", "fp8")}),
        hbm_bytes_per_s=None if bandwidth is None else bandwidth * float(GB),
        link=entry["intra_node_link"]["type"],
        link_bytes_per_s=entry["intra_node_link"]["gbps_per_direction"] * float(GB),
        p2p=entry["supports"]["p2p"],
        pcie_gen=entry["pcie"]["gen"],
        pcie_lanes=entry["pcie"]["lanes"],
        supports=frozenset(dtype for dtype in ("bf16", "fp8", "fp4") if entry["supports"][dtype]),
        sources=MappingProxyType({figure: tuple(keys) for figure, keys in entry["sources"].items()}),
        notes=entry["notes"],
    )


def _flops(tflops: Mapping[str, float | None]) -> Mapping[str, float]:
    return MappingProxyType({dtype: value * 1e12 for dtype, value in tflops.items() if value is not None})
