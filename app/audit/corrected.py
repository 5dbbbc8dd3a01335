"""The configuration with its findings mended, and without what only says the default."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from app.audit.deepspeed.keys import known_keys, names_in, parse, strict_blocks
from app.audit.finding import SEVERITIES, Change, Finding
from app.audit.subject import Subject

STATED = frozenset({"gradient_clipping", "zero_optimization.stage", "zero_optimization.overlap_comm"})
"""Keys that stay even where they say the default: it has changed between releases, or a reader looks for them."""


def corrected(config: Mapping[str, Any], findings: Iterable[Finding]) -> dict[str, Any]:
    """Apply the changes of all findings, those of the worst last, so that they have the say.

    Notes are left out: they are choices, and most would only write down a default.
    """
    out: dict[str, Any] = copy.deepcopy(dict(config))
    mended = [found for found in findings if found.severity != "info"]
    for found in sorted(mended, key=lambda found: -SEVERITIES.index(found.severity)):
        apply(out, found.changes)
    return out


def apply(config: dict[str, Any], changes: Iterable[Change]) -> None:
    """Write changes into a configuration, in place; what is in the way of a path is replaced by a block."""
    for change in changes:
        if change.remove:
            _remove(config, change.path)
        else:
            _write(config, change.path, copy.deepcopy(change.value))


def minimal(config: Mapping[str, Any], subject: Subject) -> dict[str, Any]:
    """A DeepSpeed file without the keys that say what the release takes anyway; other files as they are."""
    out: dict[str, Any] = copy.deepcopy(dict(config))
    if subject.kind == "deepspeed":
        _shorten(out, "", subject.release("deepspeed"))
    return out


def _shorten(block: dict[str, Any], path: str, release: str) -> None:
    known = names_in(path)
    for name in list(block):
        value, key = block[name], known.get(name) if isinstance(name, str) else None
        if isinstance(value, dict) and key is not None:
            _shorten(value, key.path, release)
            if not value and key.path not in ("optimizer.params", "scheduler.params", "zero_optimization.zenflow"):
                del block[name]
        elif key is not None and key.path not in STATED and path in strict_blocks() | {""} and _says_default(key.path, value, release):
            del block[name]


def _says_default(path: str, value: Any, release: str) -> bool:
    known = known_keys()[path]
    read = parse(known, value, release)
    default = known.default(release)
    return not read.wrong and read.value is not None and type(read.value) is type(default) and read.value == default


def _write(config: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = dict(config[key]) if isinstance(config.get(key), Mapping) else {}
        config = config[key]
    config[path[-1]] = value


def _remove(config: dict[str, Any], path: tuple[str, ...]) -> None:
    """Take a key out, and with it each block that then holds nothing."""
    parents = [config]
    for key in path[:-1]:
        inner = parents[-1].get(key)
        if not isinstance(inner, dict):
            return
        parents.append(inner)
    if path[-1] not in parents[-1]:
        return
    del parents[-1][path[-1]]
    for parent, key in zip(reversed(parents[:-1]), reversed(path[:-1]), strict=True):
        if parent[key]:
            break
        del parent[key]
