"""What a log says about the host: processes that were killed, memory that could not be had or pinned, how full a node was."""

from __future__ import annotations

import re

from app.ingest.logs.facts import Event, HostNumbers
from app.ingest.logs.sizes import named, search_size, size_of

_I = re.IGNORECASE
_KILLED = re.compile(
    r"exit ?code:? ?\(?-9\b|exit(?:s|ed)?(?: with)?(?: code| status)?:? ?-9\b|exits with return code = -9|exitcode ?: ?-9|\bSIGKILL\b|"
    r"\bsignal:? ?\(?9\b|Signal 9\b|return ?code:? ?=? ?-9\b|OOMKilled|exit ?code:? ?137\b|oom[-_ ]?kill|Out of memory: Killed process|"
    r"^Killed\s*$|\bkernel OOM\b|Memory cgroup out of memory|Ray kills|ray\.exceptions\.OutOfMemoryError|oom_kill_process|"
    r"\bwas killed\b|\bkilled (?:when|while|during|after|before|at|by)\b|killing process", _I | re.MULTILINE,
)  # fmt: skip
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator|\bstd::bad_alloc\b|Cannot allocate memory|\bMemoryError\b|not enough memory: you tried|Unable to allocate|"
    r"\b(?:host|CPU|system|node)(?: memory| RAM)? (?:is )?(?:OOM|out of memory|exhausted)|\bhost_oom\b|no space left on device.{0,20}shm|"
    r"out of (?:host|system|CPU) memory|ran out of (?:host|system|CPU) ?(?:memory|RAM)", _I,
)  # fmt: skip
_PINNED = re.compile(
    r"cudaHostAlloc|cudaHostRegister|hipHostMalloc|pin_memory[^\n]{0,60}(?:fail|error|invalid)|(?:fail|error)[^\n]{0,60}pin(?:ned|_memory)|"
    r"CachingHostAllocator|\bmlock\b|memlock|locked memory", _I,
)  # fmt: skip
_DISK = re.compile(r"No space left on device|Errno 28|ENOSPC|ran out of swap buffers|Not enough swap buffers", _I)
_CPU_USED = re.compile(
    r"CPU Virtual Memory:\s{0,4}used ?= ?" + named("x") + r",\s{0,4}percent ?= ?(?P<percent>\d{1,3}(?:\.\d{1,2})?)%?", _I
)
_OF_TOTAL = re.compile(named("x") + r" (?:of|/|out of) " + named("of") + r"(?: \([\d.]{1,6}%?\))?", _I)
_RSS = re.compile(r"(?:anon-rss|total-rss|rss)[:=] ?(?P<x>\d{1,14}) ?(?P<x_unit>kB)", _I)
EACH_RANK = "each rank"
_HELD = re.compile(
    r"(?<![\w.-])(?P<who>[A-Za-z_][\w.-]{0,29}(?: [\w.-]{1,30}){0,3}?),? (?:holds|held|uses|used|using|takes|took) " + named("x"), _I
)
_PER_RANK = (
    re.compile(named("x") + r" (?:per|a|each|for each|in each) (?:rank|process|worker)", _I),
    re.compile(r"\b\d{1,5} ?[x×*] ?" + named("x"), _I),
    re.compile(named("x") + r" ?[x×*] ?\d{1,5}\b(?![\d.]*\s?[KMGT]i?B)", _I),
)
_MEM_TOTAL = re.compile(r"(?:Mem(?:Total)?:|total[- ](?:host|system) memory:?|host memory:?|memory limit:?|RAM:?)\s{1,20}" + named("x"), _I)
_FREE_HOST = re.compile(named("x") + r" (?:of )?(?:host|system|CPU)(?: memory| RAM) (?:is )?free", _I)
_TRIED = re.compile(r"(?:you tried to allocate|Unable to allocate) " + named("x"), _I)


def host_events(text: str) -> dict[Event, int]:
    """What befell the host, with where the text last says so."""
    found: dict[Event, int] = {}
    patterns: tuple[tuple[Event, re.Pattern[str]], ...] = (
        ("host_killed", _KILLED), ("host_oom", _HOST_OOM), ("pin_failed", _PINNED), ("disk_full", _DISK),
    )  # fmt: skip
    for event, pattern in patterns:
        for match in pattern.finditer(text):
            found[event] = match.start()
    return found


def host_numbers(text: str) -> HostNumbers:
    """How full the node was, of what, and which process held most."""
    used, capacity = _used(text)
    process, name = _largest_process(text)
    return HostNumbers(
        used=used, capacity=capacity or search_size(_MEM_TOTAL, text, binary=False), free=search_size(_FREE_HOST, text, binary=False),
        process=process, process_name=name, requested=search_size(_TRIED, text),
    )  # fmt: skip


def _used(text: str) -> tuple[int | None, int | None]:
    """DeepSpeed prints what is used with a percentage; others write "458 of 482 GB"."""
    for match in _CPU_USED.finditer(text):
        size, percent = size_of(match, "x"), float(match["percent"])
        if size:
            return size.bytes, round(size.bytes / percent * 100) if percent else None
    for match in _OF_TOTAL.finditer(text):
        used, total = size_of(match, "x", binary=False), size_of(match, "of", binary=False)
        if used and total and 0 < used.bytes <= total.bytes:
            return used.bytes, total.bytes
    short = _SHORT_PAIR.search(text)
    if short:
        total = size_of(short, "of", binary=False)
        part = (
            float(short["n"].replace(",", "")) / float(short["of"].replace(",", ""))
            if total and float(short["of"].replace(",", ""))
            else 2.0
        )
        if total and part <= 1:
            return round(total.bytes * part), total.bytes
    return None, None


_SHORT_PAIR = re.compile(r"\b(?P<n>\d[\d,]{0,9}(?:\.\d{1,4})?) of " + named("of"), _I)


def _largest_process(text: str) -> tuple[int | None, str]:
    found: list[tuple[int, str]] = []
    for match in _RSS.finditer(text):
        found.append((int(match["x"]) * 1024, "the killed process"))
    for match in _HELD.finditer(text):
        if size := size_of(match, "x", binary=False):
            found.append((size.bytes, match["who"].strip()[-50:]))
    if not found and (each := next(filter(None, (search_size(pattern, text, binary=False) for pattern in _PER_RANK)), None)):
        return each, EACH_RANK
    return max(found, default=(None, ""), key=lambda pair: pair[0] or 0)
