"""Cards of terms as a page shows them: equation, numbers, source, how exact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.domain.units import format_gib, format_number
from app.web import charts

Document = Mapping[str, Any]
EXACTNESS = {"exact": "counted", "derived": "derived from the library's code", "fitted": "fitted to measurements"}
_SOURCE = re.compile(r"(?P<title>.*?)\s*<(?P<url>https?://[^<>\s]+)>")


def source_of(text: str) -> dict[str, str]:
    """Title and address of a source written as ``title <address>``."""
    match = _SOURCE.fullmatch(text.strip())
    return match.groupdict() if match else {"title": text, "url": ""}


def ledger(terms: list[dict[str, Any]], total: float) -> list[dict[str, Any]]:
    """Cards of bytes, by category and size."""
    order = {category: n for n, category in enumerate(charts.CATEGORIES)}
    listed = sorted(terms, key=lambda t: (order.get(t["category"], len(order)), -t["bytes"]))
    return [
        card(t) | {"value": format_gib(t["bytes"]), "exact": f"{t['bytes']:,} bytes", "share": share_of(t["bytes"], total)} for t in listed
    ]


def card(term: Document) -> dict[str, Any]:
    """What opens under a figure, without the figure."""
    return {
        "name": term["name"],
        "css": term["category"],
        "category": term["category"].replace("_", " "),
        "moment": term["moment"],
        "equation": term["equation"],
        "formula": term["formula"],
        "source": source_of(term["source"]),
        "exactness": EXACTNESS[term["exactness"]],
        "sign": "≈" if term["exactness"] == "fitted" else "",
        "changes_it": term["changes_it"],
    }


def share_of(part: float, whole: float) -> str:
    """A share in per cent; nothing of nothing."""
    return f"{format_number(100 * part / whole)} %" if whole else ""
