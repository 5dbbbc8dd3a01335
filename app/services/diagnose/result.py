"""The answer of a diagnosis, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Device = Literal["gpu", "host", "nvme", "none"]
Moment = Literal["initialisation", "forward", "loss", "backward", "reduction", "step", "load", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """An allocation with its arithmetic; ``bytes`` is None where neither log nor request has its size."""

    name: str
    bytes: int | None
    arithmetic: str
    category: str = ""
    confidence_frac: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change with what it does, computed.

    Attributes:
        settings: dotted paths of the request, or keys of the library, with their new values.
        frees_bytes: on the device that was short, None where that cannot be computed without more of the request.
        step_s_change: of one step's worth of tokens, None where it cannot be computed.
        enough: whether it alone makes the run fit, or makes it faster.
        why: what it does, with the arithmetic or a caveat.
    """

    label: str
    settings: dict[str, Any]
    frees_bytes: int | None
    step_s_change: float | None
    enough: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the planner says of the same setup."""

    verdict: str
    settings: str
    needed_bytes: int
    capacity_bytes: int
    peak_moment: str
    largest_terms: tuple[tuple[str, int], ...]
    host_bytes: int
    host_capacity_bytes: int | None
    step_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """A step expected and reported.

    Attributes:
        binds: the largest part of the expected step that is not computing, with ranks and link.
        parts: seconds by what they go into, the largest first.
    """

    expected_s: float
    reported_s: float | None
    binds: str
    binds_s: float
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The whole answer; the first eight fields are the contract's."""

    cause: str
    device: Device
    moment: Moment | None
    tensor: NamedTensor | None
    confidence_frac: float
    remedies: tuple[Remedy, ...] = ()
    would_not_help: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    others: tuple[NamedTensor, ...] = ()
    expected: Expected | None = None
    slowness: Slowness | None = None
    read: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The JSON of the contract."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["tensor"] = fields_of(self.tensor) if self.tensor else None
        plain["remedies"] = [fields_of(remedy) for remedy in self.remedies]
        plain["others"] = [fields_of(other) for other in self.others]
        plain["expected"] = fields_of(self.expected) if self.expected else None
        plain["slowness"] = fields_of(self.slowness) if self.slowness else None
        if self.expected:
            plain["expected"]["largest_terms"] = [{"name": name, "bytes": size} for name, size in self.expected.largest_terms]
        if self.slowness:
            plain["slowness"]["parts"] = [{"name": name, "seconds": seconds} for name, seconds in self.slowness.parts]
        return plain


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass."""
    return {name: getattr(record, name) for name in record.__slots__}
