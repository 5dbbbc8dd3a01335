"""Rules: one function each, registered with its id and card, and run together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from app.audit.finding import SEVERITIES, Effect, Finding, Hit, NotChecked, Severity
from app.audit.subject import Kind, Subject
from app.domain.sources import source
from app.domain.versions import release_of

Check = Callable[[Subject], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a rule is about.

    Attributes:
        title: the condition in a few words, for the list of rules.
        severity, effect: of its hits, where they say no other.
        why: what the library does there.
        fix: what to write instead.
        source: key in ``app.domain.sources``.
        kinds: the configurations it reads.
        launchers: the launchers it holds under; empty for all.
        needs: parts of the subject it cannot do without, of ``model``, ``training``, ``cluster``.
        library, since, until: releases it holds for: from ``since``, before ``until``; empty for open ends.
    """

    title: str
    severity: Severity
    effect: Effect
    why: str
    fix: str
    source: str
    kinds: frozenset[Kind]
    launchers: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    library: str = "deepspeed"
    since: str = ""
    until: str = ""

    def __post_init__(self) -> None:
        source(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A registered rule."""

    id: str
    card: Card
    check: Check

    def concerns(self, subject: Subject) -> bool:
        """Whether the file, the launcher and the release are ones that the rule is about."""
        card, release = self.card, release_of(subject.release(self.card.library))
        if subject.kind not in card.kinds or (card.launchers and subject.launcher not in card.launchers):
            return False
        return not (card.since and release < release_of(card.since)) and not (card.until and release >= release_of(card.until))


RULES: dict[str, Rule] = {}


def rule(rule_id: str, card: Card) -> Callable[[Check], Check]:
    """Register a function as the rule of that id, and return it unchanged.

    Raises:
        ValueError: another rule has the id.
    """

    def register(check: Check) -> Check:
        if rule_id in RULES:
            raise ValueError(f"two rules are called {rule_id}")
        RULES[rule_id] = Rule(id=rule_id, card=card, check=check)
        return check

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an audit found, worst first and then by place, and what it could not look at."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]


def audit(subject: Subject) -> Report:
    """Put every rule that concerns the file to it."""
    findings, not_checked = list[Finding](), list[NotChecked]()
    for entry in sorted(RULES.values(), key=lambda entry: entry.id):
        if not entry.concerns(subject):
            continue
        if missing := [need for need in entry.card.needs if getattr(subject, need) is None]:
            not_checked.append(NotChecked(id=entry.id, needs=", ".join(missing)))
            continue
        findings.extend(_finding(entry, hit) for hit in entry.check(subject))
    return Report(findings=worst_first(findings), not_checked=tuple(not_checked))


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings in the order they are shown in: by severity, then rule, then place."""
    return tuple(sorted(findings, key=lambda found: (SEVERITIES.index(found.severity), found.id, found.path)))


def _finding(entry: Rule, hit: Hit) -> Finding:
    card = entry.card
    return Finding(
        id=entry.id,
        severity=hit.severity or card.severity,
        path=hit.path,
        message=hit.message,
        why=hit.why or card.why,
        fix=hit.fix or card.fix,
        source=source(card.source).title,
        effect=hit.effect or card.effect,
        changes=hit.changes,
    )
