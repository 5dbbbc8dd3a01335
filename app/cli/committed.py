"""A generated file set against the one that is committed: what differs in content, not in the header that says who wrote it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable

import yaml


def difference(committed: str, emitted: str, path: str) -> str:
    """A unified diff from a committed file to the one emitted now; empty where they say the same.

    JSON and YAML are compared as what they hold, whatever their layout, order of keys and comments. Of scripts the comments at
    their head are left out: they name the engine's version, the plan and its figures.

    Args:
        committed, emitted: the texts.
        path: of the committed file, for the diff; its ending says how to compare.
    """
    view = _VIEWS.get(path.rpartition(".")[2], _script)
    try:
        before, after = view(committed), view(emitted)
    except (ValueError, yaml.YAMLError):  # what cannot be read as its kind differs, as text
        before, after = committed, emitted
    if before == after:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, f"{path} (as emitted now)", lineterm="")
    return "\n".join(lines)


def _json(text: str) -> str:
    return json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)


def _yaml(text: str) -> str:
    return yaml.safe_dump(yaml.safe_load(text), sort_keys=True, allow_unicode=True, width=120)


def _script(text: str) -> str:
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if not line.startswith("#") or line == "#"), len(lines))
    return "\n".join(lines[head:])


_VIEWS: dict[str, Callable[[str], str]] = {"json": _json, "yaml": _yaml, "yml": _yaml}
