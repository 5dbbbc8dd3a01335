"""Messages and tables of device allocators: torch's out-of-memory error in all its wordings, memory_summary, see_memory_usage."""

from __future__ import annotations

import re
from collections import Counter as Tally

from app.ingest.logs.facts import Counter, GpuNumbers
from app.ingest.logs.sizes import Size, named, search_size, size_of

_I = re.IGNORECASE
_OF = r"(?: memory)?"
_REQUEST = (
    re.compile(r"(?:tried|trying|failed|unable|attempt(?:ing|ed)?|could not)(?: to)?(?: allocate| reserve)? " + named("x"), _I),
    re.compile(r"(?:out of memory|OOM)[^\n]{0,80}? allocat(?:e|ing) " + named("x"), _I),
    re.compile(r"request(?:ed|ing)?(?: size)?:? (?:of )?" + named("x"), _I),
)
_CAPACITY = (
    re.compile(r"total capac(?:i)?ty of " + named("x"), _I),
    re.compile(named("x") + r" total(?: capacity| memory|[;,)]|\b)", _I),
    re.compile(r"(?:free|available) (?:of|out of) " + named("x"), _I),
    re.compile(r"max allowed: " + named("x"), _I),
    re.compile(r"MiB / {1,4}" + named("x") + r" \|", _I),
)
_FREE = (
    re.compile(r"of which " + named("x") + r" is free", _I),
    re.compile(named("x") + r"(?: is| are)? (?:free|available)\b(?! host)", _I),
    re.compile(r"\bfree:? " + named("x"), _I),
)
_ALLOCATED = (
    re.compile(named("x") + r"(?: is)? already allocated", _I),
    re.compile(r"allocated memory " + named("x") + r" is allocated", _I),
    re.compile(named("x") + r"(?: is)? allocated by PyTorch", _I),
    re.compile(r"MPS allocated: " + named("x"), _I),
)
_RESERVED = (
    re.compile(named("x") + r" reserved in total by PyTorch", _I),
    re.compile(named("x") + r" cached(?: by PyTorch)?\b", _I),
)
_UNALLOCATED = (
    re.compile(named("x") + r"(?: is)? reserved by PyTorch but unallocated", _I),
    re.compile(named("x") + r"(?: is)? reserved but unallocated", _I),
)
_TABLE = re.compile(
    r"\|\s{0,4}(?P<metric>Allocated memory|Active memory|GPU reserved memory)\s{1,12}\|\s{0,12}" + named("now") + r"\s{0,4}\|\s{0,12}"
    + named("peak"), _I,
)  # fmt: skip
_ZERO_USAGE = re.compile(
    r"\bMA "
    + named("ma")
    + r"\s{1,20}Max_MA "
    + named("top")
    + r"\s{1,20}CA "
    + named("ca")
    + r"(?:\s{1,20}Max_CA "
    + named("topca")
    + ")?"
)
_CALLS = re.compile(
    r"(?:torch\.cuda\.)?(?P<call>max_memory_allocated|max_memory_reserved|memory_allocated|memory_reserved)\S{0,20}\s{0,4}[:=]?\s{0,4}"
    + named("x")
)
_SMI = re.compile(r"(?P<x>\d{1,7}) ?(?P<x_unit>MiB) ?/ {0,4}(?P<of>\d{1,7}) ?(?P<of_unit>MiB)")
_PEAK = re.compile(r"\b(?:peak|max(?:imum)?)\b[^\n\d]{0,60}?" + named("x"), _I)
_EXTERNAL = re.compile(
    r"CUBLAS_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED|Cuda failure \d{0,3} ?'?out of memory|"
    r"CUDA error: out of memory|HIP error: out of memory|CUDA driver error: out of memory", _I,
)  # fmt: skip
_OOM = re.compile(
    r"(?P<device>CUDA|HIP|XPU|NPU|MPS|MUSA|MLU)(?: backend)?(?: error:)? out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|"
    r"\bOOM(?:s|ed)? (?:in|at|on|during|by)\b|\bout of (?:GPU |device |video )?memory\b|ran out of memory", _I,
)  # fmt: skip
ANY_REQUEST = re.compile(r"(?:tried|failed|unable)(?: to allocate)? \d", _I)


def says_gpu_oom(text: str) -> bool:
    """Whether a device ran out of memory."""
    return _OOM.search(text) is not None or _EXTERNAL.search(text) is not None or (ANY_REQUEST.search(text) is not None)


def device_of(text: str) -> str:
    """Device type the message names; CUDA where it names none."""
    return next((match["device"].upper() for match in _OOM.finditer(text) if match["device"]), "CUDA")


def gpu_numbers(text: str) -> GpuNumbers:
    """Figures of the message that ended the run, and of any table beside it."""
    request = _request(text)
    peak, counter, allocated, reserved = _tables(text)
    return GpuNumbers(
        requested=request.bytes if request else None,
        rounding=request.rounding if request else 0.0,
        capacity=_first(_CAPACITY, text) or _smi(text, "of"),
        free=_first(_FREE, text),
        allocated=_first(_ALLOCATED, text) or allocated,
        reserved=_first(_RESERVED, text) or reserved,
        unallocated=_first(_UNALLOCATED, text),
        peak=peak,
        peak_counter=counter,
        external=request is None and _EXTERNAL.search(text) is not None,
    )


def message_at(text: str) -> int | None:
    """Where the last out-of-memory message begins."""
    places = [match.start() for pattern in (*_REQUEST, _OOM, _EXTERNAL) for match in pattern.finditer(text)]
    return max(places, default=None)


def _request(text: str) -> Size | None:
    """The size that was refused most often; of several the last, which ended the run."""
    for pattern in _REQUEST:
        found = [size for match in pattern.finditer(text) if (size := size_of(match, "x"))]
        if found:
            counted = Tally(size.bytes for size in found)
            most = max(counted.values())
            return next(size for size in reversed(found) if counted[size.bytes] == most)
    return None


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    return next((found for pattern in patterns if (found := search_size(pattern, text)) is not None), None)


def _smi(text: str, name: str) -> int | None:
    sizes = [size.bytes for match in _SMI.finditer(text) if (size := size_of(match, name))]
    return max(sizes, default=None)


def _tables(text: str) -> tuple[int | None, Counter, int | None, int | None]:
    """Peak with its counter, and what is allocated and reserved now, from the tables and lines that people print."""
    now: dict[str, int] = {}
    peaks: dict[Counter, int] = {}
    for match in _TABLE.finditer(text):
        _keep(
            now,
            peaks,
            "reserved" if "reserved" in match["metric"].lower() else "allocated",
            (size_of(match, "now"), size_of(match, "peak")),
        )
    for match in _ZERO_USAGE.finditer(text):
        _keep(now, peaks, "allocated", (size_of(match, "ma"), size_of(match, "top")))
        _keep(now, peaks, "reserved", (size_of(match, "ca"), size_of(match, "topca")))
    for match in _CALLS.finditer(text):
        counter: Counter = "reserved" if "reserved" in match["call"] else "allocated"
        size = size_of(match, "x")
        _keep(now, peaks, counter, (None, size) if match["call"].startswith("max") else (size, None))
    if not peaks and (used := _smi(text, "x")):
        peaks["device"] = used
    if not peaks and (said := search_size(_PEAK, text)):
        peaks["allocated"] = said
    kind = next((c for c in _BY_TRUST if c in peaks), None)
    return (peaks[kind] if kind else None), (kind or "allocated"), now.get("allocated"), now.get("reserved")


_BY_TRUST: tuple[Counter, ...] = ("allocated", "reserved", "device")


def _keep(now: dict[str, int], peaks: dict[Counter, int], counter: Counter, pair: tuple[Size | None, Size | None]) -> None:
    if pair[0]:
        now[counter] = pair[0].bytes
    if pair[1]:
        peaks[counter] = max(peaks.get(counter, 0), pair[1].bytes)
