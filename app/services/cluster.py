"""From the pools of a request to the domain's: catalogue figures, overrides, and what is assumed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

from app.catalog.gpus import GpuSpec, find_gpu, load_gpus
from app.catalog.instances import InstanceSpec, find_instance, load_instances
from app.catalog.links import (
    LINK_BYTES_PER_S,
    host_link_bytes_per_s,
    host_memory_bytes_per_s,
    inter_node_link,
    intra_node_link,
    link_name,
    nvme_bytes_per_s,
)
from app.domain.cluster.cluster import Pool
from app.domain.cluster.gpu import Gpu
from app.domain.cluster.links import Link
from app.domain.cluster.node import Node
from app.domain.errors import InvalidRequestError
from app.domain.units import GB, GIB, format_gib
from app.services.request import CustomGpu, PoolIn

_DEFAULT_NETWORK = 100e9 / 8


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
    spec = find_gpu(instance.gpu if instance else str(given.gpu), (*loc, "gpu")) if instance or isinstance(given.gpu, str) else None
    gpu = _gpu(spec) if spec else _custom(given.gpu)  # type: ignore[arg-type]
    if given.gpu_memory_gib:
        gpu = replace(gpu, memory_bytes=round(given.gpu_memory_gib * GIB))
    gpus = given.gpus_per_node or (instance.gpus_per_node if instance else 8)
    host_memory, host_known = _host_memory(given, instance, gpu, gpus, assumed)
    coherent, generation = (_coherent(spec), spec.pcie_gen) if spec else (False, 4)
    read, write = nvme_bytes_per_s(generation)
    node = Node(
        gpu=gpu,
        gpus_per_node=gpus,
        intra_node=_intra(given, loc, spec, gpus),
        inter_node=inter_node_link(_network(given, instance, spec, assumed)),
        host_memory_bytes=host_memory,
        host_memory_assumed=not host_known,
        nvme_bytes=round(given.nvme_gb * GB) if given.nvme_gb else (instance.nvme_bytes if instance else None),
        nvme_read_bytes_per_s=given.nvme_read_gb_per_s * GB if given.nvme_read_gb_per_s else read,
        nvme_write_bytes_per_s=given.nvme_write_gb_per_s * GB if given.nvme_write_gb_per_s else write,
        host_memory_bytes_per_s=host_memory_bytes_per_s(gpus, coherent=coherent),
        usd_per_hour=instance.usd_per_hour if instance and gpus == instance.gpus_per_node else None,
    )
    return Pool(node=node, nodes=given.nodes, members=(index,))


def _coherent(spec: GpuSpec) -> bool:
    """Whether a Grace CPU sits on the same board, behind a coherent link."""
    return "Grace" in spec.architecture


def _gpu(spec: GpuSpec) -> Gpu:
    if not spec.hbm_bytes_per_s:
        raise InvalidRequestError.at(
            "cluster", "pools", msg=f"the memory bandwidth of {spec.name} is not known", hint="describe it as a custom GPU object"
        )
    return Gpu(
        name=spec.name, key=spec.key, architecture=spec.architecture.split()[0].lower(), memory_bytes=spec.memory_bytes,
        peak_flops_per_s=spec.peak_flops, achieved_flops_per_s=spec.achieved_flops, hbm_bytes_per_s=spec.hbm_bytes_per_s,
        pcie_bytes_per_s=host_link_bytes_per_s(spec.pcie_gen, coherent=_coherent(spec)), p2p=spec.p2p != "driver-disabled",
        coherent=_coherent(spec),
    )  # fmt: skip


def _custom(given: CustomGpu) -> Gpu:
    return Gpu(
        name=given.name, key="custom", architecture="custom", memory_bytes=round(given.memory_gib * GIB),
        peak_flops_per_s={"bf16": given.bf16_tflops * 1e12, "fp16": given.bf16_tflops * 1e12, "fp32": given.bf16_tflops * 1e12 / 8},
        achieved_flops_per_s={}, hbm_bytes_per_s=given.hbm_gb_per_s * GB, pcie_bytes_per_s=given.pcie_gb_per_s * GB,
    )  # fmt: skip


def _intra(given: PoolIn, loc: tuple[str | int, ...], spec: GpuSpec | None, gpus: int) -> Link:
    """Link inside the node: the one named, or the device's own; a bridge joins two devices, more of them talk over PCIe."""
    name = re.sub(r"[^a-z0-9]", "", given.intra_node.lower()) if given.intra_node else None
    if name is not None and name not in LINK_BYTES_PER_S:
        raise InvalidRequestError.at(
            *loc, "intra_node", msg=f"{given.intra_node!r} is not a known link", hint=f"use one of {', '.join(LINK_BYTES_PER_S)}"
        )
    if name:
        rate = LINK_BYTES_PER_S[name]
    elif spec is None:
        rate = given.gpu.link_gb_per_s * GB  # type: ignore[union-attr]
        name = "nvlink" if rate > LINK_BYTES_PER_S["pcie5"] else "pcie"
    elif spec.p2p == "nvlink-pair" and gpus > 2 and link_name(spec.link).startswith("nvlink"):
        name = f"pcie{spec.pcie_gen}"
        rate = LINK_BYTES_PER_S[name]
    else:
        name, rate = link_name(spec.link), spec.link_bytes_per_s
    # GeForce drivers refuse peer access over PCIe, on cards with a bridge as well.
    p2p = spec is None or not ("GeForce" in spec.name or spec.p2p == "driver-disabled")
    return intra_node_link(name, rate, gpus, p2p=p2p)


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


def _network(given: PoolIn, instance: InstanceSpec | None, spec: GpuSpec | None, assumed: list[str]) -> float:
    """Bytes/s of all NICs of one node: as given, the instance's, or what machines with this GPU, or one like it, usually have."""
    if given.inter_node_gbit_per_s:
        return given.inter_node_gbit_per_s * 1e9 / 8
    if instance and instance.inter_node_bytes_per_s:
        return instance.inter_node_bytes_per_s
    network = _usual_network(spec.key, spec.architecture, spec.p2p) if spec else _DEFAULT_NETWORK
    if given.nodes > 1:
        assumed.append(
            f"The network between nodes was not given; {network * 8 / 1e9:,.0f} Gbit/s a node is assumed, "
            "as machines with this GPU usually have."
        )
    return network


@lru_cache(maxsize=256)
def _usual_network(gpu: str, architecture: str, p2p: str) -> float:
    """Median over the catalogue's machines with this GPU; else with GPUs of its generation and the same link inside the node."""
    alike = {g.key for g in load_gpus() if (g.architecture, g.p2p) == (architecture, p2p)}
    for keys in ({gpu}, alike):
        usual = [i.inter_node_bytes_per_s for i in load_instances() if i.gpu in keys and i.inter_node_bytes_per_s]
        if usual:
            return median(usual)
    return _DEFAULT_NETWORK
