"""Copy the reference data into the catalogue, after checking that every figure can be traced to a source.

    python -m bench.build_catalog

Reads ``../shared/data/{gpus,instances,rates}.json`` and rewrites ``app/catalog/{gpus,instances,rates}.json``. Nothing
is dropped or changed; running it twice changes nothing.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / ".." / "shared" / "data"
CATALOG = ROOT / "app" / "catalog"
NAMES = ("gpus", "instances", "rates")
SOURCE_KEYS = ("source", "sources")


def main() -> int:
    """Build all three files; 1 where one of them cannot be trusted."""
    documents = {name: json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")) for name in NAMES}
    faults = [f"{name}: {fault}" for name, data in documents.items() for fault in check(data)]
    known = {gpu["key"] for gpu in documents["gpus"]["gpus"]}
    faults += [f"instances: {n['key']} has unknown GPU {n['gpu']}" for n in documents["instances"]["nodes"] if n["gpu"] not in known]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    for name, data in documents.items():
        path = CATALOG / f"{name}.json"
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    return 0


def check(data: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one document: source keys without a title, and keys used twice.

    A citation with spaces is a title in itself.
    """
    for key in sorted(set(cited(data)) - set(data["sources"])):
        if " " not in key:
            yield f"source {key!r} has no title"
    entries = data.get("gpus") or data.get("nodes") or []
    for key, count in Counter(entry["key"] for entry in entries).items():
        if count > 1:
            yield f"key {key!r} is used {count} times"
        elif not key:
            yield "an entry has no key"


def cited(value: Any, inside: bool = False) -> Iterator[str]:
    """Every source key that a document cites, wherever it stands."""
    if isinstance(value, str) and inside:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from cited(item, inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not (key == "sources" and all(isinstance(title, str) for title in _values(item))):
                yield from cited(item, inside or key in SOURCE_KEYS)


def _values(item: Any) -> list[Any]:
    return list(item.values()) if isinstance(item, dict) else [None]


if __name__ == "__main__":
    sys.exit(main())
