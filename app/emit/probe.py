"""A snippet that measures a training run and prints what ``POST /plans/{id}/measurements`` takes."""

from __future__ import annotations

from app.domain.plan import Artifact
from app.emit.render import render

FILENAME = "shardplan_probe.py"


def probe_snippet(plan_id: str = "", url: str = "", engine_version: str = "") -> Artifact:
    """Write shardplan_probe.py, which needs nothing but torch.

    Args:
        plan_id: the saved plan that is run; a placeholder stays where it is empty.
        url: of the service that keeps it; likewise.
        engine_version: named in the first line.
    """
    address = f"{url.rstrip('/') or 'http://127.0.0.1:8000'}/plans/{plan_id or 'PLAN_ID'}/measurements"
    return Artifact(
        filename=FILENAME,
        media_type="text/x-python",
        text=render("probe.py.j2", address=address, plan_id=plan_id or "PLAN_ID", engine_version=engine_version),
    )
