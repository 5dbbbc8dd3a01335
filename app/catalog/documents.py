"""The catalogue as JSON documents, for ``GET /catalog/*``: every figure beside the source it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from app.catalog.data import document, plain
from app.catalog.gpus import usable_bytes

Kind = Literal["gpus", "instances", "models"]
NAMES = ("key", "name", "hf_id")
"""Fields of an entry that are names of it."""
_SEARCHED = (*NAMES, "vendor", "provider", "gpu")


@cache
def catalog_document(kind: Kind) -> Mapping[str, Any]:
    """A catalogue as a JSON document; callers must not change it.

    ``gpus`` and ``instances`` hold ``sources``, the titles behind the source keys of each entry; an entry of
    ``models`` holds its source in words. A GPU also has ``usable_bytes``, what the planner takes as its capacity.
    """
    data = dict(document(kind))
    if kind == "gpus":
        return data | {"gpus": [gpu | {"usable_bytes": usable_bytes(gpu["memory"])} for gpu in data["gpus"]]}
    if kind == "instances":
        return {("instances" if key == "nodes" else key): value for key, value in data.items()}
    return data


def has_words(entry: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Whether each word is somewhere in an entry's names, in any case and punctuation.

    Example:
        >>> has_words({"key": "h100-sxm-80gb", "aliases": ["H100 SXM5"]}, ["h-100", "SXM5"])
        True
    """
    family = str(entry.get("architecture", "")).partition(" ")[0]  # "Hopper GH100": the chip's name is inside other GPUs' own
    values = (family, *entry.get("aliases", ()), *(entry.get(field) or "" for field in _SEARCHED))
    text = " ".join(map(plain, values))
    return all(plain(word) in text for word in words)
