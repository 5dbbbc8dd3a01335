"""All rules, registered by importing their modules."""

from __future__ import annotations

from app.audit import duplicates, torch
from app.audit.deepspeed import (
    batch,
    buckets,
    memory,
    nvme,
    offload,
    optimizer,
    parallel,
    parsing,
    precision,
    scheduler,
    special,
    zero,
)
from app.audit.registry import RULES, audit

MODULES = (duplicates, torch, batch, buckets, memory, nvme, offload, optimizer, parallel, parsing, precision, scheduler, special, zero)

__all__ = ["MODULES", "RULES", "audit"]
