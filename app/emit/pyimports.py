"""The import block of an emitted script, in the order a linter wants it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

LINE_CHARS = 120


def import_block(wanted: Iterable[str]) -> str:
    """Write ``"module"``, ``"module as name"`` and ``"module:name"`` requests as sorted import statements.

    Example:
        >>> print(import_block(["torch", "torch.nn:Module", "json", "torch.nn:Linear"]))
        import json
        <BLANKLINE>
        import torch
        from torch.nn import Linear, Module
    """
    return _block(frozenset(wanted))


@lru_cache(maxsize=256)
def _block(wanted: frozenset[str]) -> str:
    plain: set[str] = set()
    members: defaultdict[str, set[str]] = defaultdict(set)
    for entry in wanted:
        module, _, name = entry.partition(":")
        if name:
            members[module].add(name)
        else:
            plain.add(module)
    sections = [_section(plain, members, standard=standard) for standard in (True, False)]
    return "\n\n".join(section for section in sections if section)


def _section(plain: set[str], members: dict[str, set[str]], *, standard: bool) -> str:
    lines = [f"import {module}" for module in sorted(plain) if _is_standard(module) is standard]
    for module in sorted(members, key=str.lower):
        if _is_standard(module) is standard:
            lines.append(_from_line(module, sorted(members[module], key=_member_key)))
    return "\n".join(lines)


def _is_standard(module: str) -> bool:
    return module.split(".")[0].split(" ")[0] in sys.stdlib_module_names


def _member_key(name: str) -> tuple[int, str, str]:
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name.lower(), name


def _from_line(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LINE_CHARS:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
