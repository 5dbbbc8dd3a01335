"""Corrected claims, names side by side, the glossary, and the sources, as their pages show them."""

from __future__ import annotations

from typing import Any

from app.catalog.claims import Claim, claim_topics, load_claims
from app.catalog.glossary import load_symbols, load_terms
from app.catalog.keys import checked, load_keys, oldest
from app.domain.parallel.deepspeed_names import COUNTERPARTS
from app.domain.parallel.fsdp_names import CALLS, KEYS, SHARDINGS, Renamed
from app.domain.parallel.strategy import STRATEGIES
from app.domain.sources import source
from app.domain.units import format_count, format_number
from app.domain.versions import Key
from app.services.method.citing import CATALOGUES, Cited, cited_by_catalogue, cited_by_formulas
from app.services.method.evidence import Fact, evidence_of
from app.services.method.figures import all_cards
from app.services.method.lives import slug_of
from app.web import charts
from app.web.method.rooms import amount, href

_CITED_TITLES = CATALOGUES | {"models": "Models", "keys": "Configuration keys"}
_LARGE = 1e6


def claims_view() -> dict[str, Any]:
    """Claims by topic, each with what is true, its arithmetic and its sources."""
    claims = load_claims()
    return {
        "topics": [
            {"key": key, "title": title, "claims": [_claim(c) for c in claims if c.topic == key]} for key, title in claim_topics().items()
        ],
        "count": len(claims),
    }


def _claim(claim: Claim) -> dict[str, Any]:
    keys = {key.name: key for key in load_keys()}
    return {
        "id": claim.key,
        "claim": claim.claim,
        "truth": claim.truth,
        "facts": [{"what": f.what, "arithmetic": f.arithmetic, "value": _fact(f)} for f in evidence_of(claim.key)],
        "keys": [{"name": name, "says": key_words(keys[name])} for name in claim.keys],
        "sources": [{"key": key, "title": source(key).title, "url": source(key).url} for key in claim.sources],
    }


def _fact(fact: Fact) -> str:
    if fact.unit == "number":
        return format_count(fact.value) if fact.value >= _LARGE else format_number(fact.value)
    return charts.seconds(fact.value) if fact.unit == "seconds" else amount(fact.value)


def key_words(key: Key) -> str:
    """What the catalogue knows of a key, by release.

    Example:
        >>> key_words(next(k for k in load_keys() if k.name == "gradient_clipping"))
        'default 0.0, 1.0 since 0.19.3'
    """
    said = []
    if key.since:
        said.append(f"since {key.since}")
    if key.until:
        said.append(f"refused since {key.until}")
    if key.inert:
        said.append("parsed and changes nothing")
    if key.defaults:
        said.append("default " + ", ".join(f"{value}".lower() + (f" since {first}" if first else "") for first, value in key.defaults))
    return "; ".join(said) or "in every release since " + oldest(key.library)


def names_view() -> dict[str, Any]:
    """DeepSpeed, FSDP2 and FSDP1 side by side, and DeepSpeed's keys by release."""
    keys = load_keys()
    changing = [key for key in keys if key.since or key.until or key.inert or len(key.defaults) > 1]
    return {
        "shardings": [
            {
                "fsdp1": s.fsdp1,
                "reshard": "" if s.reshard is None else str(s.reshard),
                "mesh": "" if s.reshard is None else "copies × shards" if s.replicates else "one line of ranks",
                "like": s.like,
                "note": s.note,
            }
            for s in SHARDINGS
        ],
        "strategies": [
            {"slug": slug_of(s), "label": s.label, "framework": s.framework, "name": s.name, "gathers": s.gathers} for s in STRATEGIES
        ],
        "settings": [{"deepspeed": c.deepspeed or "", "fsdp2": c.fsdp2 or "", "note": c.note} for c in COUNTERPARTS],
        "keys": [_renamed(row) for row in KEYS],
        "calls": [_renamed(row) for row in CALLS],
        "releases": {library: {"oldest": oldest(library), "checked": checked(library)} for library in ("deepspeed", "torch")},
        "changing": [
            {"name": k.name, "library": k.library, "says": key_words(k), "loses": k.loses, "instead": k.replaced_by} for k in changing
        ],
        "steady": [k.name for k in keys if k not in changing],
    }


def _renamed(row: Renamed) -> dict[str, str]:
    return {"fsdp1": row.fsdp1 or "", "fsdp2": row.fsdp2 or "", "note": row.note}


def glossary_view() -> dict[str, Any]:
    """Words, and the symbols of the equations."""
    return {
        "terms": [{"key": w.key, "word": w.word, "meaning": w.meaning} for w in load_terms()],
        "symbols": [{"key": f"symbol-{w.key}", "word": w.word, "meaning": w.meaning} for w in load_symbols().values()],
    }


def sources_view() -> dict[str, Any]:
    """Sources of the formulas with what cites them, and those of the data files."""
    claims = {claim.key: claim.claim for claim in load_claims()}
    cards = all_cards()
    formulas = [c for c in cited_by_formulas() if c.cards or c.claims]
    return {
        "formulas": [
            _cited(c)
            | {
                "cards": [{"title": cards[key].title, "href": href(key)} for key in c.cards],
                "claims": [{"title": claims[key], "href": f"/method/wrong-claims#{key}"} for key in c.claims],
            }
            for c in formulas
        ],
        "catalogues": [
            {"name": name, "title": title, "rows": [_cited(c) for c in cited_by_catalogue(name) if c.entries]}
            for name, title in _CITED_TITLES.items()
        ],
    }


def _cited(cited: Cited) -> dict[str, Any]:
    return {"key": cited.key, "title": cited.title, "url": cited.url, "entries": cited.entries}
