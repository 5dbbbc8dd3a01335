"""What an audit says about one place of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Effect = Literal["fails", "ignored", "changed", "slow", "memory"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One edit of the configuration that a fix consists of.

    Attributes:
        path: keys from the root, e.g. ``("zero_optimization", "stage")``.
        value: what is written there; ignored where ``remove`` is set.
        remove: the key is taken out, and with it a block that holds nothing else.
    """

    path: tuple[str, ...]
    value: Any = None
    remove: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a rule applies, as the rule's function yields it.

    Attributes:
        path: dotted path of the key as written in the file; of the missing key where it is missing; empty for the whole file.
        message: one sentence with what was found, and this model's numbers where they decide.
        why, fix, severity, effect: in place of the rule's own, where this hit differs.
        changes: the edits that mend it; empty where only a person can decide.
    """

    path: str
    message: str
    why: str = ""
    fix: str = ""
    severity: Severity | None = None
    effect: Effect | None = None
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A hit with everything a reader needs.

    Attributes:
        id: of the rule, e.g. ``DS013``.
        source: title of where the rule was read or seen.
        effect: what really happens: the run fails, the key is ignored, something else is done, it is slow, or takes memory.
    """

    id: str
    severity: Severity
    path: str
    message: str
    why: str
    fix: str
    source: str
    effect: Effect
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChecked:
    """A rule that could not be put to the file for want of something."""

    id: str
    needs: str
