"""Names of plans and links that change the form, shared by pages and charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from app.domain.parallel.strategy import STRATEGIES
from app.web.forms import changed

Document = Mapping[str, Any]


def plan_label(settings: Document) -> str:
    """Strategy and framework in words."""
    named = {(s.name, s.framework): s.label for s in STRATEGIES}
    label = named.get((settings["strategy"], settings["framework"]), str(settings["strategy"]))
    degrees = {"tensor_parallel": "TP", "pipeline_parallel": "PP", "sequence_parallel": "SP", "expert_parallel": "EP"}
    return " · ".join([label, *(f"{word} {settings[key]}" for key, word in degrees.items() if settings[key] > 1)])


def action(label: str, changes: Document, request: Document, current: dict[str, str]) -> dict[str, Any]:
    """A link that sets the form, and the same as field changes for a button beside a pasted config."""
    wanted = changed(request, changes)
    names = [*wanted, *(name for name in current if name not in wanted)]
    difference = {name: wanted.get(name, "") for name in names if wanted.get(name) != current.get(name)}
    href = "" if "config" in wanted else "/?" + urlencode(wanted)
    return {"label": label, "href": href, "change": urlencode(difference)}
