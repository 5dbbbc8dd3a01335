"""What a log of a failed or slow run says, as facts: sizes, the phase, who was killed, how long a step took."""

from __future__ import annotations

from app.ingest.logs.facts import MAX_CHARACTERS, GpuNumbers, HostNumbers, LogFacts, Pace, Phase
from app.ingest.logs.read import read_log

__all__ = ["MAX_CHARACTERS", "GpuNumbers", "HostNumbers", "LogFacts", "Pace", "Phase", "read_log"]
