"""A grid: one request, and values for some of its fields, in every combination."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import orjson

from app.domain.errors import InvalidRequestError

MAX_SHOWN = 80


def size_of(axes: Mapping[str, Sequence[Any]]) -> int:
    """How many combinations there are.

    Example:
        >>> size_of({"training.seq_len": [2048, 4096], "cluster.pools.0.nodes": [1, 2, 4]})
        6
    """
    return math.prod(map(len, axes.values()))


def combinations(base: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every request of a grid, the last axis varying fastest.

    Args:
        base: the request that the axes change.
        axes: values by path: keys with dots between them, and numbers for places in lists.

    Raises:
        InvalidRequestError: a path leads through something that is no object or list, or beyond the end of a list.

    Example:
        >>> list(combinations({"a": {"b": 1}}, {"a.b": [2, 3]}))
        [{'a': {'b': 2}}, {'a': {'b': 3}}]
    """
    try:
        plain = orjson.dumps(base)
    except orjson.JSONEncodeError as error:
        raise InvalidRequestError.at("grid", "base", msg=f"this is not JSON: {error}") from error
    paths = [(path, path.split(".")) for path in axes]
    for values in product(*axes.values()):
        request: dict[str, Any] = orjson.loads(plain)
        for (path, parts), value in zip(paths, values, strict=True):
            _put(request, path, parts, value)
        yield request


def value_at(request: Any, path: str) -> Any:
    """What a request has at the path of an axis; None where it has nothing.

    Example:
        >>> value_at({"cluster": {"pools": [{"nodes": 4}]}}, "cluster.pools.0.nodes")
        4
    """
    here = request
    for part in path.split("."):
        if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            here = here[int(part)]
        elif isinstance(here, dict) and part in here:
            here = here[part]
        else:
            return None
    return here


def _put(request: dict[str, Any], path: str, parts: Sequence[str], value: Any) -> None:
    """Set one field; objects on the way that are not there are made."""
    here: Any = request
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(here, list):
            if not part.isdecimal() or int(part) >= len(here):
                raise _astray(path, f"{'.'.join(parts[:depth])} is a list of {len(here)}, which has no place {part[:MAX_SHOWN]!r}")
            key: Any = int(part)
        elif isinstance(here, dict):
            key = part
        else:
            raise _astray(path, f"{'.'.join(parts[:depth])} is no object and no list")
        if last:
            here[key] = value
        elif isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[key]


def _astray(path: str, why: str) -> InvalidRequestError:
    return InvalidRequestError.at(
        "grid", "axes", path[:MAX_SHOWN], msg=f"the axis {path[:MAX_SHOWN]!r} leads nowhere: {why}",
        hint="write a path such as training.seq_len or cluster.pools.0.nodes, and give base what it leads through",
    )  # fmt: skip
