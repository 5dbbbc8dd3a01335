"""What the page shows of a plan's checkpoints, made from its document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.units import format_gib
from app.web.cards import ledger

Document = Mapping[str, Any]
SMALL_BYTES = 2**24


def checkpoint_view(found: Document | None) -> dict[str, Any] | None:
    """Figures and commands in the order of the section; None for a plan that was saved before there were any."""
    if found is None:
        return None
    served = found["inference"]
    rows = [("weights, 16 bits", served["weights"]), ("each token in the cache", served["cache_per_token"])]
    return {
        "total": _amount(found["per_save_bytes"]),
        "rank": _amount(found["per_rank_bytes"]),
        "written_by": found["written_by"],
        "files": [f | {"all": _amount(f["bytes"]), "largest": _amount(f["largest_bytes"])} for f in found["files"]],
        "ledger": [_short(c) for c in ledger(found["terms"], found["per_save_bytes"])],
        "exports": [_export(export) for export in found["exports"]],
        "resume": found["resume"] | {"disk": _amount(found["resume"]["disk_bytes"])},
        "inference": [{"name": name, "value": _amount(term["bytes"]), "formula": term["formula"]} for name, term in rows if term],
        "how": served["how"],
        "notes": found["notes"],
    }


def _export(export: Document) -> dict[str, Any]:
    return {
        "title": export["title"],
        "commands": "\n".join(export["commands"]),
        "output": _amount(export["output_bytes"]),
        "host": _amount(export["host_bytes"]),
        "formula": export["host"]["formula"],
    }


def _short(shown: dict[str, Any]) -> dict[str, Any]:
    """A card whose figure is too small for GiB and per cent: its bytes say it better."""
    num_bytes = int(shown["exact"].removesuffix(" bytes").replace(",", ""))
    return shown if num_bytes >= SMALL_BYTES else shown | {"value": _amount(num_bytes), "share": ""}


def _amount(num_bytes: int) -> str:
    """GiB, or KiB and bytes where GiB would be a string of zeros."""
    if num_bytes >= SMALL_BYTES or num_bytes == 0:
        return format_gib(num_bytes) if num_bytes else ""
    return f"{num_bytes / 1024:,.0f} KiB" if num_bytes >= 1024 else f"{num_bytes} bytes"
