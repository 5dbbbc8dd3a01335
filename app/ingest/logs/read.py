"""One text read whole: which event ended it, and everything said around that."""

from __future__ import annotations

import re

from app.domain.errors import InvalidRequestError
from app.domain.units import format_number
from app.ingest.logs.allocator import device_of, gpu_numbers, message_at, says_gpu_oom
from app.ingest.logs.facts import MAX_CHARACTERS, Event, LogFacts, Phase
from app.ingest.logs.host import host_events, host_numbers
from app.ingest.logs.pace import pace_of
from app.ingest.logs.phase import around, hints_of, is_checkpointed, library_of, phase_of_progress, phase_of_stack
from app.ingest.logs.printed import printed_settings

_MISMATCH = re.compile(r"(?P<batch>\d{1,9}) != (?P<micro>\d{1,9}) \* (?P<accum>\d{1,9}) \* (?P<world>\d{1,9})")
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout|collective operation timeout|NCCL timeout|ncclInternalError: .{0,40}timed? ?out|"
    r"Timeout\(ms\)=\d{1,9}|Timed out waiting \d{1,9}ms|ProcessGroupNCCL.{0,80}timeout", re.IGNORECASE,
)  # fmt: skip
_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_SAID = 240
_STAGES = ("ddp", "zero1", "zero2", "zero3")


def read_log(text: str) -> LogFacts:
    """Read a log, in time linear in its length.

    Args:
        text: what was pasted; several ranks' lines may be mixed.

    Raises:
        InvalidRequestError: it is longer than ``MAX_CHARACTERS``.
    """
    if len(text) > MAX_CHARACTERS:
        given, most = format_number(len(text)), format_number(MAX_CHARACTERS)
        hint = "send its end, from the first Traceback on"
        raise InvalidRequestError.at("text", msg=f"text has {given} characters; at most {most} are read", hint=hint)
    text = _ANSI.sub("", text)
    host = host_events(text)
    on_gpu = says_gpu_oom(_without_host(text, host))
    place = message_at(text) if on_gpu else None
    events = _events(text, host, on_gpu=on_gpu)
    lines = around(text, place if on_gpu else max(host.values(), default=None))
    framework, strategy = library_of(text)
    printed = printed_settings(text)
    if framework in (None, "deepspeed") and "stage" in printed:
        framework, strategy = "deepspeed", _STAGES[printed["stage"]]
    mismatch = _MISMATCH.search(text)
    return LogFacts(
        gpu=gpu_numbers(lines if on_gpu else text),
        host=host_numbers(text),
        pace=pace_of(text),
        events=events,
        phase=_phase(text, lines, events, place),
        hints=hints_of(lines),
        framework=framework,
        strategy=strategy,
        checkpointed=is_checkpointed(lines),
        device=device_of(text),
        batch=(int(mismatch["batch"]), int(mismatch["micro"]), int(mismatch["accum"]), int(mismatch["world"])) if mismatch else None,
        printed=printed,
        said=_quoted(text, place if on_gpu else max(host.values(), default=None)),
    )


def _without_host(text: str, host: dict[Event, int]) -> str:
    """The text without the lines of the host's own messages, which are worded like those of a device."""
    if not host:
        return text
    return "\n".join(line for line in text.split("\n") if not host_events(line))


def _events(text: str, host: dict[Event, int], *, on_gpu: bool) -> tuple[Event, ...]:
    found: list[Event] = ["gpu_oom"] if on_gpu else []
    found += sorted(host, key=lambda event: host[event])
    if _TIMEOUT.search(text):
        found.append("collective_timeout")
    if _MISMATCH.search(text):
        found.append("batch_mismatch")
    return tuple(found)


def _phase(text: str, lines: str, events: tuple[Event, ...], place: int | None) -> Phase | None:
    if not events:
        return phase_of_stack(text) if "Traceback" in text else None
    if events[0] == "gpu_oom":
        return phase_of_stack(lines)
    return phase_of_progress(text, place)


def _quoted(text: str, place: int | None) -> str:
    if place is None:
        return ""
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    return text[max(start, place - _SAID // 2) : len(text) if end < 0 else end][:_SAID].strip()
