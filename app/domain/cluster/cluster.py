"""Pools of nodes. A synchronous job runs at the pace of its slowest rank, so unequal pools are joined by their minimum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from app.domain.cluster.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal nodes.

    Attributes:
        node: one of them.
        nodes: how many.
        members: indices, in the request, of the pools this one stands for.
    """

    node: Node
    nodes: int
    members: tuple[int, ...] = (0,)

    @property
    def world_size(self) -> int:
        """Devices in the pool."""
        return self.node.gpus_per_node * self.nodes


def joined(pools: Sequence[Pool]) -> Pool | None:
    """What a synchronous job over several pools sees: every figure is the minimum of the members.

    Returns None when the pools hold different numbers of GPUs per node, which no launcher mesh can express.
    """
    if len({p.node.gpus_per_node for p in pools}) > 1:
        return None
    first = pools[0]
    slowest = min((p.node for p in pools), key=lambda n: n.gpu.peak("bf16"))
    gpu = replace(
        slowest.gpu,
        memory_bytes=min(p.node.gpu.memory_bytes for p in pools),
        hbm_bytes_per_s=min(p.node.gpu.hbm_bytes_per_s for p in pools),
        pcie_bytes_per_s=min(p.node.gpu.pcie_bytes_per_s for p in pools),
    )
    node = replace(
        slowest,
        gpu=gpu,
        intra_node=min((p.node.intra_node for p in pools), key=lambda link: link.bytes_per_s),
        inter_node=min((p.node.inter_node for p in pools), key=lambda link: link.bytes_per_s),
        host_memory_bytes=_least([p.node.host_memory_bytes for p in pools]),
        nvme_bytes=_least([p.node.nvme_bytes for p in pools]),
        nvme_read_bytes_per_s=min(p.node.nvme_read_bytes_per_s for p in pools),
        nvme_write_bytes_per_s=min(p.node.nvme_write_bytes_per_s for p in pools),
        host_memory_bytes_per_s=min(p.node.host_memory_bytes_per_s for p in pools),
        usd_per_hour=_average_price(pools),
    )
    if len(pools) == 1:
        return first
    return Pool(node=node, nodes=sum(p.nodes for p in pools), members=tuple(m for p in pools for m in p.members))


MOST_SETS = 31
"""Sets of pools that are all tried: those of five unequal ones."""


def pool_choices(pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """Sets of pools a job could use, those of most pools first: each alone and all joinable combinations, equal ones once.

    Beyond ``MOST_SETS`` of them: each alone, and of those with equally many GPUs a node the fastest two, three, … and all together.
    """
    sets = _all_sets(pools)
    if len(sets) > MOST_SETS:
        sets = _fewer_sets(pools)
    return tuple(pool for some in sets if (pool := joined([pools[place] for place in some])) is not None)


def leaves_sets_out(pools: Sequence[Pool]) -> bool:
    """Whether these pools make more sets than are all tried."""
    return len(_all_sets(pools)) > MOST_SETS


_Set = tuple[int, ...]
"""Pools by their places."""


def _all_sets(pools: Sequence[Pool]) -> list[_Set]:
    places = range(len(pools))
    return _distinct(pools, (some for size in range(len(pools), 0, -1) for some in combinations(places, size)))


def _fewer_sets(pools: Sequence[Pool]) -> list[_Set]:
    fastest = sorted(range(len(pools)), key=lambda place: (-pools[place].node.gpu.peak("bf16"), -pools[place].world_size))
    alike: dict[int, list[int]] = {}
    for place in fastest:
        alike.setdefault(pools[place].node.gpus_per_node, []).append(place)
    several = [tuple(sorted(places[:size])) for places in alike.values() for size in range(2, len(places) + 1)]
    return _distinct(pools, [*sorted(several, key=len, reverse=True), *((place,) for place in range(len(pools)))])


def _distinct(pools: Sequence[Pool], sets: Iterable[_Set]) -> list[_Set]:
    """Of sets that can be joined, one of those that differ by equal pools only."""
    kinds = [next(i for i, other in enumerate(pools) if (pool.nodes, pool.node) == (other.nodes, other.node)) for pool in pools]
    found: dict[_Set, _Set] = {}
    for some in sets:
        if len({pools[place].node.gpus_per_node for place in some}) == 1:
            found.setdefault(tuple(sorted(kinds[place] for place in some)), some)
    return list(found.values())


def _least(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return min(known) if len(known) == len(values) else None


def _average_price(pools: Sequence[Pool]) -> float | None:
    prices = [p.node.usd_per_hour for p in pools]
    if any(price is None for price in prices):
        return None
    total = sum(p.nodes * (p.node.usd_per_hour or 0.0) for p in pools)
    return total / sum(p.nodes for p in pools)
