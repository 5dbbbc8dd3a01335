"""One accelerator as the formulas see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Figures of one device.

    Attributes:
        name: what to call it.
        key: catalogue key, or ``custom``.
        architecture: maker's architecture name, used to pick fitted rates.
        memory_bytes: what the framework can really allocate from (the driver's figure, not the label's).
        peak_flops_per_s: dense peak by dtype.
        achieved_flops_per_s: best matmul rate measured, by dtype; empty where nobody measured it.
        hbm_bytes_per_s: memory bandwidth.
        pcie_bytes_per_s: pinned host-to-device copy rate.
        coherent: whether host memory is behind a coherent link (Grace), which copies several times faster than PCIe.
        p2p: whether devices of one node can read each other directly.
    """

    name: str
    key: str
    architecture: str
    memory_bytes: int
    peak_flops_per_s: Mapping[str, float]
    achieved_flops_per_s: Mapping[str, float]
    hbm_bytes_per_s: float
    pcie_bytes_per_s: float
    p2p: bool = True
    coherent: bool = False

    def peak(self, precision: str) -> float:
        """Dense peak of a compute dtype in FLOP/s; falls back to the dtype the device would really use."""
        for dtype in (precision, *_FALLBACK.get(precision, ())):
            if self.peak_flops_per_s.get(dtype):
                return self.peak_flops_per_s[dtype]
        return max(self.peak_flops_per_s.values())


_FALLBACK = {"fp8": ("bf16", "fp16"), "bf16": ("fp32",), "fp16": ("bf16", "fp32"), "fp32": ("tf32",)}
