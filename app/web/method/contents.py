"""The first page: what is computed, in the order in which it is, and where to read on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from app.catalog.claims import load_claims
from app.catalog.data import document
from app.catalog.glossary import load_symbols, load_terms
from app.domain.memory.moments import MOMENT_LABELS
from app.domain.parallel.strategy import STRATEGIES
from app.services.method.citing import cited_by_formulas
from app.services.method.examples import work
from app.services.method.figures import all_cards
from app.web.cards import EXACTNESS
from app.web.charts import seconds
from app.web.method.rooms import ROOMS, amount, example_view, room_of

_FIRST = "zero3"


def contents_view() -> dict[str, Any]:
    """Figures of the worked example for the text, and the pages with what is on each."""
    cards = all_cards()
    on_page, kinds = Counter(room_of(key) for key in cards), Counter(card.sureness for card in cards.values())
    runs = sum(section["all"]["rows"] for section in document("accuracy")["sections"])
    return {
        "cards": len(cards),
        "kinds": [{"word": words, "count": kinds[key], "key": key} for key, words in EXACTNESS.items()],
        "moments": list(MOMENT_LABELS.values()),
        "example": example_view(_FIRST) | _figures(),
        "pages": [{"name": name, "title": room.title, "lead": room.lead, "count": on_page[name]} for name, room in ROOMS.items()],
        "counts": {
            "strategies": len(STRATEGIES),
            "claims": len(load_claims()),
            "words": len(load_terms()) + len(load_symbols()),
            "sources": sum(bool(c.cards or c.claims) for c in cited_by_formulas()),
            "runs": runs,
        },
    }


def _figures() -> dict[str, str]:
    best = work(_FIRST).candidate
    gpu, time = best.gpu, best.time
    return {
        "allocated": amount(gpu.peak_allocated_bytes),
        "moment": gpu.peak_moment,
        "reserved": amount(gpu.peak_reserved_bytes),
        "device": amount(gpu.device_bytes),
        "capacity": amount(gpu.capacity_bytes),
        "sent": amount(sum(t.bytes_per_step for t in best.communication)),
        "step": seconds(time.step_s),
        "compute": seconds(time.compute_s),
        "exposed": seconds(time.exposed_communication_s),
        "optimizer": seconds(time.optimizer_s),
    }
