"""Pinned host memory: torch's allocator rounds blocks up to powers of two, and never gives one back."""

from __future__ import annotations

from functools import partial

import numpy as np

from app.domain.model.architecture import Architecture
from app.domain.setup import Array, TrainingSetup
from app.domain.units import MIB

ROUND_LIMIT_MIB = 64
"""Blocks above this keep their size: launch.sh sets ``pinned_max_cached_size_mb``, or the threshold of rounding, to it."""


def pinned_rounding_bytes(block_bytes: float) -> int:
    """Bytes torch's pinned allocator adds to one block: it takes the next power of two unless a rounding threshold is set.

    Source: torch CachingHostAllocator; ``pinned_max_cached_size_mb`` in the launch file avoids it.

    Example: the fp32 partition of 70.6e9 parameters on 8 ranks takes 68.7e9 bytes instead of 35.3e9.
        >>> round((35.3e9 + pinned_rounding_bytes(35.3e9)) / 1e9, 1)
        68.7
    """
    size = max(1, int(block_bytes))
    return (1 << (size - 1).bit_length()) - size


def rounding_bytes(block_bytes: Array) -> Array:
    """The same with the launch file's threshold, elementwise: 0 above it.

    Example:
        >>> [int(x) for x in rounding_bytes(np.array([0.0, 20 * 2**20, 35.3e9]))]
        [0, 12582912, 0]
    """
    size = np.maximum(1.0, np.ceil(block_bytes))
    extra: Array = np.where((block_bytes >= 1) & (size <= ROUND_LIMIT_MIB * MIB), 2.0 ** np.ceil(np.log2(size)) - size, 0.0)
    return extra


def rounded_tensors_bytes(setup: TrainingSetup, ranks: Array, bytes_each: Array) -> Array:
    """What rounding adds in one rank that pins its shard of every tensor by itself.

    Args:
        ranks: ranks that hold one copy together; 0 where nothing is pinned.
        bytes_each: bytes of an element.

    Returns:
        Bytes per rank, an entry a candidate.
    """
    pair = ranks + 1j * bytes_each
    # There are few different pairs: a set finds them faster than a sort.
    pairs = sorted(set(pair.ravel().tolist()), key=lambda p: (p.real, p.imag))
    extra = [setup.once(("pinned", p), partial(_rounded_tensors_bytes, setup.model, p.real, p.imag)) for p in pairs]
    by_candidate: Array = np.array(extra)[np.searchsorted(np.array(pairs), pair)]
    return by_candidate


def _rounded_tensors_bytes(model: Architecture, ranks: float, bytes_each: float) -> float:
    if not ranks:
        return 0.0
    tensors = [(w.numel // w.copies, w.copies * s.owned) for s in model.stacks for w in s.block.weights]
    tensors += [(w.numel // w.copies, w.copies) for w in model.weights]
    numel, count = np.array(tensors, dtype=np.float64).T
    return float((rounding_bytes(np.ceil(numel / ranks) * bytes_each) * count).sum())
