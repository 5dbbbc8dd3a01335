"""A snippet that measures a training run and prints what ``POST /plans/{id}/measurements`` takes."""

from __future__ import annotations

from app.domain.plan import Artifact
from app.emit.render import render

_LOCAL = "http://127.0.0.1:8000"
FILENAME = "shardplan_probe.py"


def probe_snippet(plan_id: str = "", url: str = "", engine_version: str = "") -> Artifact:
    """Write shardplan_probe.py, which needs nothing but torch.

    Args:
        plan_id: the saved plan that is run; a placeholder stays where it is empty.
        url: of the service that keeps it; likewise.
        engine_version: named in the first line.
    """
    service, plan = url.rstrip("/") or _LOCAL, plan_id or "PLAN_ID"
    return Artifact(
        filename=FILENAME,
        media_type="text/x-python",
        text=render(
            "probe.py.j2", address=f"{service}/plans/{plan}/measurements", url=service, plan_id=plan, engine_version=engine_version
        ),
    )
