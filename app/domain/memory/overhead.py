"""What the torch allocator and the driver add to live tensors: reserved and device totals."""

from __future__ import annotations

import numpy as np

from app.domain.cards import term
from app.domain.setup import Array


@term(
    title="pools of the communication streams",
    equation="(sum_of_pool_peaks - allocated) × kept_frac",
    source="torch-fsdp2",
    exactness="derived",
    changes_it="smaller units; fewer ranks do not help",
)
def pool_bytes(sum_of_pool_peaks: Array, allocated: Array, kept_frac: Array) -> Array:
    """What gathering and reducing streams keep reserved although their own peak is at another moment than the whole's.

    Equation: (Σ pools max over moments − max over moments Σ pools) · kept. Bytes per GPU.
    """
    return (sum_of_pool_peaks - allocated) * kept_frac


@term(title="allocator rounding and fragmentation", equation="allocated × frac × kept_frac", source="public-rows", exactness="fitted",
      changes_it="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")  # fmt: skip
def reserved_extra_bytes(allocated: Array, frac: Array, kept_frac: Array) -> Array:
    """Memory torch reserves above what tensors occupy: separate pools for each stream, rounding, holes.

    Equation: reserved − allocated = frac · allocated · kept, with frac fitted where parameters are gathered and where not.
    Bytes per GPU.
    """
    return allocated * frac * kept_frac


@term(
    title="loss blocks the allocator cannot reuse",
    equation="tokens × vocab × bytes_per_logit / tensor_ranks × kept_frac",
    source="public-rows",
    exactness="fitted",
    changes_it="a fused loss; expandable segments; a current transformers",
)
def reserved_logits_bytes(tokens: Array, vocab: Array, bytes_per_logit: Array, tensor_ranks: Array, kept_frac: Array) -> Array:
    """Blocks as large as the logits that stay reserved between the loss's forward and backward: upcast and shifted copies of
    several sizes, of which earlier versions of the loss made more.

    Equation: k · T · V · kept, k fitted where the loss is not fused. Bytes per GPU.
    """
    return tokens * vocab * bytes_per_logit / tensor_ranks * kept_frac


def kept_frac(extra: Array, room: Array, least: Array) -> Array:
    """Share of the cached blocks that stay: when the device is full, the allocator gives free blocks back before it gives up.

    Equation: clip(room / extra, least / extra, 1)

    Args:
        extra: bytes it would hold above the live tensors on a device without end.
        room: bytes of the device above the live tensors and the context.
        least: bytes it cannot give back, in blocks that are partly used.

    Returns:
        A fraction between 0 and 1.

    Source: torch CUDACachingAllocator, ``release_cached_blocks`` before an out-of-memory error.

    Example: 10 GiB of cached blocks where only 4 GiB are left.
        >>> float(kept_frac(10.0, 4.0, 1.0))
        0.4
    """
    share: Array = np.minimum(1.0, np.maximum(room, least) / np.maximum(1.0, extra))
    return share


@term(title="CUDA context and kernels", equation="context", source="ml-engineering", exactness="fitted")
def context_bytes(context: float) -> float:
    """Memory of the process on the device before any tensor. Bytes per GPU."""
    return context


@term(
    title="NCCL buffers",
    equation="buffers × several_ranks",
    source="ml-engineering",
    exactness="fitted",
    changes_it="NCCL_BUFFSIZE; fewer communicators",
)
def nccl_bytes(buffers: float, several_ranks: Array) -> Array:
    """Communicator buffers, there as soon as one collective has run. Bytes per GPU."""
    return buffers * several_ranks
