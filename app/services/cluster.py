"""From the pools of a request to the domain's: catalogue figures, overrides, and what is assumed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from statistics import median

from app.catalog.gpus import GpuSpec, find_gpu
from app.catalog.instances import InstanceSpec, find_instance, load_instances
from app.catalog.rates import load_rates
from app.domain.cluster.cluster import Pool
from app.domain.cluster.gpu import Gpu
from app.domain.cluster.links import Link
from app.domain.cluster.node import Node
from app.domain.errors import InvalidRequestError
from app.domain.units import GB, GIB, format_gib
from app.services.request import CustomGpu, PoolIn

# Per direction and GPU, decimal: NVIDIA's NVLink generations, PCI-SIG lane rates x16, AMD Infinity Fabric.
_LINKS = {
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

# Share of the per-direction rate that a large ring collective reaches (rates.json: 0.76-0.82 on NVSwitch, 0.36-0.67 over PCIe).
_RING_FRAC, _PCIE_RING_FRAC, _PCIE_CROWDED_FRAC, _NO_P2P_FRAC = 0.79, 0.65, 0.40, 0.30
_NIC_FRAC = 0.92
_DEFAULT_NETWORK = 100e9 / 8
# Sustained RAM bandwidth that Adam on the host reaches: 0.22 s a billion parameters at 28 bytes (ZeRO-Offload's table).
_HOST_BYTES_PER_S = 127e9
_NVME_READ, _NVME_WRITE = 10e9, 5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPools:
    """Pools as the domain sees them, with what had to be assumed."""

    pools: tuple[Pool, ...]
    gpu_name: str
    assumed: tuple[str, ...]


def resolve_pools(pools: list[PoolIn]) -> ResolvedPools:
    """Look every pool up and fill in what the request leaves out.

    Raises:
        InvalidRequestError: an unknown GPU, instance or link.
    """
    assumed: list[str] = []
    resolved = tuple(_pool(pool, index, assumed) for index, pool in enumerate(pools))
    return ResolvedPools(pools=resolved, gpu_name=" + ".join(dict.fromkeys(p.node.gpu.name for p in resolved)), assumed=tuple(assumed))


def _pool(given: PoolIn, index: int, assumed: list[str]) -> Pool:
    loc = ("cluster", "pools", index)
    instance = find_instance(given.instance, (*loc, "instance")) if given.instance else None
    if instance or isinstance(given.gpu, str):
        spec = find_gpu(instance.gpu if instance else str(given.gpu), (*loc, "gpu"))
        gpu, per_direction, peer = _gpu(spec), spec.link_bytes_per_s, spec.p2p
    else:
        gpu, per_direction, peer = _custom(given.gpu), given.gpu.link_gb_per_s * GB, "custom"  # type: ignore[arg-type, union-attr]
    if given.gpu_memory_gib:
        gpu = replace(gpu, memory_bytes=round(given.gpu_memory_gib * GIB))
    gpus = given.gpus_per_node or (instance.gpus_per_node if instance else 8)
    intra = _intra(given, loc, per_direction, peer, gpus)
    network = _network(given, instance, gpu, assumed)
    host_memory, host_known = _host_memory(given, instance, gpu, gpus, assumed)
    node = Node(
        gpu=gpu,
        gpus_per_node=gpus,
        intra_node=intra,
        inter_node=Link(name="network", bytes_per_s=network * _NIC_FRAC, latency_s=250e-6, hop_s=30e-6),
        host_memory_bytes=host_memory,
        host_memory_assumed=not host_known,
        nvme_bytes=round(given.nvme_gb * GB) if given.nvme_gb else (instance.nvme_bytes if instance else None),
        nvme_read_bytes_per_s=(given.nvme_read_gb_per_s or _NVME_READ / GB) * GB,
        nvme_write_bytes_per_s=(given.nvme_write_gb_per_s or _NVME_WRITE / GB) * GB,
        host_memory_bytes_per_s=_HOST_BYTES_PER_S,
        usd_per_hour=instance.usd_per_hour if instance and gpus == instance.gpus_per_node else None,
    )
    return Pool(node=node, nodes=given.nodes, members=(index,))


def _gpu(spec: GpuSpec) -> Gpu:
    if not spec.hbm_bytes_per_s:
        raise InvalidRequestError.at(
            "cluster", "pools", msg=f"the memory bandwidth of {spec.name} is not known", hint="describe it as a custom GPU object"
        )
    return Gpu(
        name=spec.name, key=spec.key, architecture=spec.architecture.split()[0].lower(), memory_bytes=spec.memory_bytes,
        peak_flops_per_s=spec.peak_flops, achieved_flops_per_s=spec.achieved_flops, hbm_bytes_per_s=spec.hbm_bytes_per_s,
        pcie_bytes_per_s=host_link_bytes_per_s(spec.pcie_gen), p2p=spec.p2p != "driver-disabled",
    )  # fmt: skip


def host_link_bytes_per_s(generation: int) -> float:
    """Measured rate of pinned copies over sixteen lanes of a PCIe generation, bytes/s."""
    rates = {rate.link: rate.to_device_bytes_per_s for rate in load_rates().host_device}
    return rates.get(f"PCIe{generation} x16") or rates["PCIe4 x16"] or 25e9


def _custom(given: CustomGpu) -> Gpu:
    return Gpu(
        name=given.name, key="custom", architecture="custom", memory_bytes=round(given.memory_gib * GIB),
        peak_flops_per_s={"bf16": given.bf16_tflops * 1e12, "fp16": given.bf16_tflops * 1e12, "fp32": given.bf16_tflops * 1e12 / 8},
        achieved_flops_per_s={}, hbm_bytes_per_s=given.hbm_gb_per_s * GB, pcie_bytes_per_s=given.pcie_gb_per_s * GB,
    )  # fmt: skip


def _intra(given: PoolIn, loc: tuple[str | int, ...], per_direction: float, peer: str, gpus: int) -> Link:
    name = re.sub(r"[^a-z0-9]", "", given.intra_node.lower()) if given.intra_node else None
    if name is not None and name not in _LINKS:
        raise InvalidRequestError.at(
            *loc, "intra_node", msg=f"{given.intra_node!r} is not a known link", hint=f"use one of {', '.join(_LINKS)}"
        )
    rate = _LINKS[name] if name else per_direction
    pcie = name.startswith("pcie") if name else per_direction <= 63e9
    if not pcie:
        frac = _RING_FRAC
    elif peer == "driver-disabled":
        frac = _NO_P2P_FRAC
    else:
        frac = _PCIE_RING_FRAC if gpus <= 4 else _PCIE_CROWDED_FRAC
    return Link(name=name or ("pcie" if pcie else "nvlink"), bytes_per_s=rate * frac, latency_s=25e-6, hop_s=5.7e-6 if pcie else 3.4e-6)


def _host_memory(given: PoolIn, instance: InstanceSpec | None, gpu: Gpu, gpus: int, assumed: list[str]) -> tuple[int | None, bool]:
    """Bytes of RAM of one node, as given, the instance's, or what machines with this GPU have for each of them, and whether it is known."""
    if given.host_memory_gib:
        return round(given.host_memory_gib * GIB), True
    if instance and gpus == instance.gpus_per_node:
        return instance.host_memory_bytes, True
    usual = [i.host_memory_bytes / i.gpus_per_node for i in load_instances() if i.gpu == gpu.key and i.host_memory_bytes]
    if not usual:
        return None, False
    bytes_ = round(median(usual) * gpus)
    assumed.append(f"Host memory was not given; {format_gib(bytes_)} a node is assumed, as machines with this GPU usually have.")
    return bytes_, False


def _network(given: PoolIn, instance: InstanceSpec | None, gpu: Gpu, assumed: list[str]) -> float:
    """Bytes/s of all NICs of one node: as given, the instance's, or what machines with this GPU usually have."""
    if given.inter_node_gbit_per_s:
        return given.inter_node_gbit_per_s * 1e9 / 8
    if instance and instance.inter_node_bytes_per_s:
        return instance.inter_node_bytes_per_s
    usual = [i.inter_node_bytes_per_s for i in load_instances() if i.gpu == gpu.key and i.inter_node_bytes_per_s]
    network = median(usual) if usual else _DEFAULT_NETWORK
    if given.nodes > 1:
        assumed.append(
            f"The network between nodes was not given; {network * 8 / 1e9:,.0f} Gbit/s a node is assumed, "
            "as machines with this GPU usually have."
        )
    return network
