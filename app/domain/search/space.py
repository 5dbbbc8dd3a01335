"""The space: every legal combination of the free axes, and a count of what was left out and why.

A candidate is a structure (everything but the batch) with one of the batches its mesh allows. Structures are rows of one integer
table; candidates are numbered structure by structure, and only become columns where they are evaluated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from app.domain.errors import InvalidRequestError
from app.domain.parallel.mesh import divisors
from app.domain.parallel.strategy import STRATEGIES, Strategy
from app.domain.recipe.recipe import CHECKPOINTING_NAMES
from app.domain.search.constraints import OFFLOAD_TARGETS, Constraints
from app.domain.search.mesh import Mesh, Width, meshes_at_most, meshes_of
from app.domain.search.pinned import strategies_for
from app.domain.search.rules import (
    quantises,
    why_not_group,
    why_not_mesh,
    why_not_offload,
    why_not_pipeline_offload,
    why_not_precision,
)
from app.domain.setup import Array, TrainingSetup

MAX_CANDIDATES = 2_000_000
"""Candidates of one search. A larger space is narrowed, axis by axis in the order of ``WIDTHS``, and the answer says so."""

MOST_MESHES = 5_000
"""Meshes that are looked at; where degrees make more, they are narrowed likewise. Models have a few hundred."""

WIDTHS = (
    Width(said=""),
    Width(said="at most 8 micro-batches a mesh", batches=8),
    Width(said="the 4 narrowest shard groups", batches=8, groups=4),
    Width(said="no ZeRO++ quantisation", batches=8, groups=4, quantised=False),
    Width(said="pipeline and sequence degrees that are powers of two", batches=8, groups=4, quantised=False, powers=True),
    Width(said="pipeline, sequence and expert degrees up to 8", batches=8, groups=4, quantised=False, powers=True, most=8),
    Width(said="no pipeline, sequence or expert parallelism", batches=4, groups=2, quantised=False, most=1),
)
"""From everything to the least: batches between two others cost little, model parallelism is given up last."""

FIELDS = (
    "mesh", "row", "group", "hpz", "qwz", "qgz", "offload_optimizer", "offload_parameters", "checkpointing", "act_offload", "lean",
)  # fmt: skip
_FREE_OFFLOAD = ((0, 0), (1, 0), (1, 1), (2, 0), (2, 2), (2, 1), (1, 2))


@dataclass(slots=True, kw_only=True)
class Space:
    """Structures and the meshes they lie on: those in memory first, then those with pipeline stages, then those on NVMe.

    Attributes:
        meshes: what the ``mesh`` column points into.
        structures: integer columns by name, an entry a structure (``FIELDS``).
        plain: for each structure, the one before it (or itself) that differs by ZeRO++ quantisation only and has none.
        micro_batch, grad_accum: by mesh and number of the batch; meshes with fewer batches repeat their last one.
        batches: batches of each structure; first: number of its first candidate.
        rejected: combinations the rules left out, by reason.
        narrowed: what was left out to stay within the bound, in words.
    """

    meshes: tuple[Mesh, ...]
    structures: Mapping[str, Array]
    plain: Array
    batches: Array
    first: Array
    micro_batch: Array
    grad_accum: Array
    rejected: Counter[str] = field(default_factory=Counter)
    narrowed: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of candidates."""
        return int(self.first[-1] + self.batches[-1])

    def split(self, candidates: Array) -> tuple[Array, Array]:
        """Structure and number of the batch of each candidate."""
        structure = np.searchsorted(self.first, candidates, side="right") - 1
        return structure, candidates - self.first[structure]


def bound_shared_by(pools: int) -> int:
    """Candidates that each of several pools may have, so that all of them together stay within the bound."""
    return max(1, MAX_CANDIDATES // pools)


def build_space(setup: TrainingSetup, constraints: Constraints, batches: int | None = None, limit: int | None = None) -> Space:
    """Every legal candidate under the constraints, or as many as the bound allows.

    Args:
        batches: micro-batches of each mesh, both ends first; None for all.
        limit: candidates at most; None for the bound of one search.

    Raises:
        InvalidRequestError: the pinned degrees do not divide the devices, or no strategy allows the pins together.
    """
    strategies, refused = strategies_for(setup, constraints)
    said: list[str] = []
    for width in WIDTHS:
        said += [width.said] * bool(width.said)
        if width is not WIDTHS[-1] and meshes_at_most(setup, constraints, width) > MOST_MESHES:
            continue
        draft = _Draft(setup, constraints, width if batches is None else replace(width, batches=min(batches, width.batches)))
        draft.rejected.update(refused)
        for strategy in strategies:
            draft.add(strategy)
        if draft.count <= (limit or MAX_CANDIDATES):
            break
    if not draft.count:
        raise _nothing_legal(constraints, draft.rejected)
    return draft.space(tuple(said))


class _Draft:
    """Collects blocks of structures, pairs of mesh and groups times options, and counts before anything is made of them."""

    def __init__(self, setup: TrainingSetup, constraints: Constraints, width: Width) -> None:
        self.setup, self.constraints, self.width = setup, constraints, width
        self.rejected: Counter[str] = Counter()
        self.meshes = meshes_of(setup, constraints, width, self.rejected)
        self.blocks: list[tuple[int, list[tuple[int, int, int]], list[tuple[int, ...]]]] = []
        self.count = 0

    def add(self, strategy: Strategy) -> None:
        """Every structure of one strategy. Meshes that allow the same options share a block."""
        alike: dict[tuple[bool, ...], list[tuple[int, int, int]]] = {}
        for number, mesh in enumerate(self.meshes):
            if reason := why_not_mesh(strategy, mesh.free):
                self.rejected[reason] += len(mesh.batches)
                continue
            key = (mesh.ranks > 1, mesh.free.pipeline_parallel > 1, mesh.free.expert_parallel > 1)
            alike.setdefault(key, []).extend((number, group, hpz) for group, hpz in self._groups(strategy, mesh))
        for pairs in alike.values():
            if pairs:
                batches = sum(len(self.meshes[number].batches) for number, _, _ in pairs)
                options = list(self._options(strategy, self.meshes[pairs[0][0]], len(pairs), batches))
                self.count += batches * len(options)
                for on_disk in (False, True):
                    some = [option for option in options if (2 in option[2:4]) == on_disk]
                    self.blocks += [(STRATEGIES.index(strategy), pairs, some)] * bool(some)

    def _groups(self, strategy: Strategy, mesh: Mesh) -> Iterator[tuple[int, int]]:
        """(shard group, hpZ group) choices of one strategy."""
        ranks, pinned, gpus = mesh.ranks, self.constraints.shard_group_size, self.setup.pool.node.gpus_per_node
        local = max(1, gpus // mesh.degrees.tensor_parallel)
        if strategy.states == "group":
            # Groups of whole nodes; a group inside one node is worth it only where it is asked for.
            choices = [pinned] if pinned else [d for d in divisors(ranks) if 1 < d < ranks and d % local == 0][: self.width.groups]
            choices = choices or [ranks] * (self.constraints.strategy == "hsdp")
            if not choices:
                self.rejected[f"no shard group size between 1 and the {ranks} ranks divides them"] += 1
        elif strategy.name == "zero3" and not pinned:
            choices = [ranks] + [gpus] * (1 < gpus < ranks)
        else:
            choices = [pinned or ranks]
        for group in choices:
            reason = why_not_group(strategy, group, ranks, mesh.degrees, gpus)
            if reason and pinned:
                self.rejected[reason] += len(mesh.batches)
            if not reason:
                shared = ranks if strategy.states == "all" else group if strategy.states == "group" else 1
                yield shared, group if group < shared else 1

    def _options(self, strategy: Strategy, mesh: Mesh, pairs: int, batches: int) -> Iterator[tuple[int, ...]]:
        """Tuples (qwz, qgz, offload_optimizer, offload_parameters, checkpointing, act_offload, lean) on meshes like this one."""
        recomputes = _recompute_choices(self.setup)
        leans = (0, 1) if strategy.framework == "deepspeed" and mesh.ranks > 1 else (0,)
        rest = [(*recompute, lean) for recompute, lean in product(recomputes, leans)]
        offloads = []
        for offload in _offloads(self.constraints, strategy, self.rejected, times=pairs):
            reason = why_not_precision(self.setup, strategy, offload) or why_not_pipeline_offload(strategy, mesh.free, offload)
            unshared = mesh.ranks == 1 and strategy.states != "none" and offload == (0, 0) and self.constraints.strategy is None
            reason = reason or "sharding over one rank divides nothing" * unshared
            if reason:
                self.rejected[reason] += len(rest) * batches
            else:
                offloads.append(offload)
        for offload, tail, flags in product(offloads, rest, self._quantisations(strategy, mesh)):
            yield (*flags, *offload, *tail)

    def _quantisations(self, strategy: Strategy, mesh: Mesh) -> list[tuple[int, int]]:
        """(qwZ, qgZ) choices. Both change what is computed, so a pinned strategy is taken without them."""
        free = self.width.quantised and self.constraints.strategy is None and mesh.ranks > 1
        if not free or not quantises(self.setup, strategy):
            return [(0, 0)]
        # qgZ's two hops need several nodes and a reduce-scatter, which Muon switches off at stage 3.
        hops = self.setup.pool.nodes > 1 and self.setup.recipe.optimizer != "muon" and mesh.free.expert_parallel == 1
        return [(0, 0), (1, 0), (0, 1), (1, 1)] if hops else [(0, 0), (1, 0)]

    def _piped(self, pairs: list[tuple[int, int, int]]) -> bool:
        """Whether a block's meshes have stages, which are alike in this."""
        return self.meshes[pairs[0][0]].degrees.pipeline_parallel > 1

    def space(self, narrowed: tuple[str, ...]) -> Space:
        """The table of structures."""
        blocks = sorted(self.blocks, key=lambda block: (2 in block[2][0][2:4], self._piped(block[1])))
        left = np.array([(mesh, row, group, hpz) for row, pairs, _ in blocks for mesh, group, hpz in pairs], dtype=np.int64)
        right = np.array([option for _, _, options in blocks for option in options], dtype=np.int64)
        # By pair: how many options it is combined with, where they start, and how many in a row differ by quantisation only.
        sizes = np.array([len(options) for _, _, options in blocks])
        plains = [sum(option[0] + option[1] == 0 for option in options) for _, _, options in blocks]
        by_block = np.stack([sizes, np.cumsum(sizes) - sizes, sizes // np.array(plains)])
        times, offset, flags = np.repeat(by_block, [len(pairs) for _, pairs, _ in blocks], axis=1)
        pair, start = np.repeat(np.arange(len(left)), times), np.cumsum(times) - times
        numbers = np.arange(len(pair))
        within = numbers - start[pair]
        table = np.concatenate([left[pair], right[offset[pair] + within]], axis=1)
        plain = numbers - within % flags[pair]
        batches = np.array([len(m.batches) for m in self.meshes])[table[:, 0]]
        most = max(len(m.batches) for m in self.meshes)
        padded = np.array([m.batches + m.batches[-1:] * (most - len(m.batches)) for m in self.meshes], dtype=np.int64)
        return Space(
            meshes=tuple(self.meshes), structures=dict(zip(FIELDS, np.ascontiguousarray(table.T), strict=True)),
            plain=plain, batches=batches, first=np.cumsum(batches) - batches,
            micro_batch=padded[..., 0], grad_accum=padded[..., 1], rejected=self.rejected, narrowed=narrowed,
        )  # fmt: skip


def _recompute_choices(setup: TrainingSetup) -> list[tuple[int, int]]:
    """Checkpointing policies with activation offload; only fully checkpointed inputs are worth sending to the host."""
    recipe = setup.recipe
    policies = [CHECKPOINTING_NAMES.index(recipe.activation_checkpointing)] if recipe.activation_checkpointing else [0, 1, 2]
    if recipe.activation_offload is not None:
        return [(p, int(recipe.activation_offload)) for p in policies]
    return [(p, 0) for p in policies] + [(2, 1)] * (2 in policies)


def _offloads(constraints: Constraints, strategy: Strategy, rejected: Counter[str], *, times: int) -> Iterator[tuple[int, int]]:
    """(optimizer, parameter) offload pairs that the framework really honours; rejections count ``times``."""
    optimizer, parameters = (_code(constraints.offload_optimizer), _code(constraints.offload_parameters))
    if strategy.framework == "deepspeed" and strategy.parameters == "none":
        # DeepSpeed parses these settings below stage 3 and ignores them: parameters stay, NVMe becomes the CPU (warned about).
        parameters = 0
        optimizer = min(optimizer, 1) if optimizer is not None else None
    if strategy.framework == "fsdp2" and None in (optimizer, parameters):
        optimizer = parameters = max(optimizer or 0, parameters or 0) if (optimizer, parameters) != (None, None) else None
    found = False
    for pair in _FREE_OFFLOAD:
        if optimizer not in (None, pair[0]) or parameters not in (None, pair[1]):
            continue
        reason = why_not_offload(strategy, pair)
        if reason:
            rejected[reason] += times
            continue
        found = True
        yield pair
    if not found:
        rejected[f"{strategy.label} cannot offload the way it is pinned"] += times


def _code(name: str | None) -> int | None:
    return None if name is None else OFFLOAD_TARGETS.index(name)


def _nothing_legal(constraints: Constraints, rejected: Counter[str]) -> InvalidRequestError:
    """Everything was ruled out: the pins, and the rules that left nothing."""
    pinned = {name: value for name in constraints.__slots__ if name != "versions" and (value := getattr(constraints, name)) is not None}
    order = ("shard_group_size", "offload_parameters", "offload_optimizer", "strategy", "framework")
    field_name = next((name for name in order if name in pinned), "strategy")
    text = ", ".join(f"{name} {value}" for name, value in pinned.items())
    return InvalidRequestError.at(
        "constraints", field_name, msg=f"no framework can do all of this together: {text}",
        hint="; ".join(rejected) or "leave one of them open",
    )  # fmt: skip
