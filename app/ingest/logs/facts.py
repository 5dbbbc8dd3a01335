"""What can be read from a log. Nothing here is concluded; a field that the log does not have is None or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["initialisation", "forward", "loss", "backward", "reduction", "step", "load", "save"]
Event = Literal["gpu_oom", "host_killed", "host_oom", "pin_failed", "collective_timeout", "batch_mismatch", "disk_full"]
Counter = Literal["allocated", "reserved", "device"]

MAX_CHARACTERS = 200_000
"""Longest text that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNumbers:
    """Memory figures of one device, in bytes, as the runtime printed them.

    Attributes:
        requested: what could not be allocated.
        rounding: half a unit of the last digit that was printed of it.
        capacity: memory of the device; free: of it, when the request failed.
        allocated: live tensors; reserved: what the allocator holds from the driver.
        unallocated: reserved and not in tensors.
        peak: highest figure the log has of ``peak_counter``.
        external: whether memory was refused outside torch's allocator (NCCL, cuBLAS, a bare CUDA call).
    """

    requested: int | None = None
    rounding: float = 0.0
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    unallocated: int | None = None
    peak: int | None = None
    peak_counter: Counter = "allocated"
    external: bool = False

    @property
    def idle(self) -> int | None:
        """Bytes the allocator holds that no tensor uses, said outright or by difference."""
        if self.unallocated is not None:
            return self.unallocated
        if self.reserved is None or self.allocated is None:
            return None
        return max(0, self.reserved - self.allocated)

    @property
    def short(self) -> int | None:
        """Bytes by which the request was too large."""
        return None if self.requested is None or self.free is None else max(0, self.requested - self.free)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNumbers:
    """Memory figures of a node, in bytes.

    Attributes:
        used, capacity: of the node or container.
        process: largest single process the log names, ``process_name`` as it calls it.
        requested: what the host could not give.
    """

    used: int | None = None
    capacity: int | None = None
    free: int | None = None
    process: int | None = None
    process_name: str = ""
    requested: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a run went.

    Attributes:
        step_s: seconds of one step, the median of what was printed.
        tokens_per_s, samples_per_s: of the whole job or of one device, which logs seldom say.
        per_gpu: whether tokens are said to be of one device.
        quoted: the words it was read from.
    """

    step_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    per_gpu: bool = False
    quoted: str = ""

    @property
    def known(self) -> bool:
        """Whether the log says anything about speed."""
        return self.step_s is not None or self.tokens_per_s is not None or self.samples_per_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """Everything read from one text.

    Attributes:
        events: what went wrong, in the log's own words; the order is that of the text.
        phase: when, by the stack or by the last progress that was printed; None where the text does not say.
        hints: names of tensors that the failing lines speak of (``adam``, ``logits``, ``attention``, …).
        framework, strategy: of the library whose files are in the stack, in the request's words.
        checkpointed: the stack passes through activation checkpointing.
        device: device type the message names (CUDA, HIP, XPU, NPU).
        world_size: ranks that the run had, where an assertion says so, and the numbers of the assertion.
        printed: settings that libraries printed, by name (``micro_batch``, ``stage``, ``reduce_bucket``, …).
        said: the line that the conclusion rests on, shortened.
    """

    gpu: GpuNumbers = field(default_factory=GpuNumbers)
    host: HostNumbers = field(default_factory=HostNumbers)
    pace: Pace = field(default_factory=Pace)
    events: tuple[Event, ...] = ()
    phase: Phase | None = None
    hints: tuple[str, ...] = ()
    framework: str | None = None
    strategy: str | None = None
    checkpointed: bool = False
    device: str = "CUDA"
    batch: tuple[int, int, int, int] | None = None
    said: str = ""
    printed: Mapping[str, int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether the text says nothing that a diagnosis can use."""
        return not (self.events or self.pace.known or self.gpu.peak or self.gpu.allocated or self.host.used or self.hints or self.phase)
