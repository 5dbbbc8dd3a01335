"""The catalogue as JSON documents, for ``GET /catalog/*``: every figure beside the source it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from app.catalog.data import document
from app.catalog.gpus import usable_bytes

Kind = Literal["gpus", "instances", "models"]


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
