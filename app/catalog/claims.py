"""Claims that are repeated and wrong, what is true instead, and where that is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from app.catalog.data import document


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim.

    Attributes:
        key: short and unique.
        topic: the group it is shown in.
        claim: as it is repeated.
        truth: what the libraries do.
        sources: keys of ``app.domain.sources``.
        keys: configuration keys it is about.
    """

    key: str
    topic: str
    claim: str
    truth: str
    sources: tuple[str, ...]
    keys: tuple[str, ...] = ()


@cache
def load_claims() -> tuple[Claim, ...]:
    """Every claim, by topic."""
    return tuple(
        Claim(
            key=entry["id"], topic=entry["topic"], claim=entry["claim"], truth=entry["truth"], sources=tuple(entry["sources"]),
            keys=tuple(entry.get("keys", ())),
        )
        for entry in document("claims")["claims"]
    )  # fmt: skip


@cache
def claim_topics() -> dict[str, str]:
    """Titles of the topics, in order."""
    return dict(document("claims")["topics"])
