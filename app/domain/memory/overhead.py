"""What the torch allocator and the driver add to live tensors: reserved and device totals."""

from __future__ import annotations

from app.domain.cards import term
from app.domain.setup import Array


@term(
    title="pools of the communication streams",
    equation="sum_of_pool_peaks - allocated",
    source="torch-fsdp2",
    exactness="derived",
    changes_it="smaller units; fewer ranks do not help",
)
def pool_bytes(sum_of_pool_peaks: Array, allocated: Array) -> Array:
    """What gathering and reducing streams keep reserved although their own peak is at another moment than the whole's.

    Equation: Σ pools max over moments − max over moments Σ pools. Bytes per GPU.
    """
    return sum_of_pool_peaks - allocated


@term(title="allocator rounding and fragmentation", equation="allocated × frac", source="public-rows", exactness="fitted",
      changes_it="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")  # fmt: skip
def reserved_extra_bytes(allocated: Array, frac: Array) -> Array:
    """Memory torch reserves above what tensors occupy: separate pools for each stream, rounding, holes.

    Equation: reserved − allocated = frac · allocated, with frac fitted where parameters are gathered and where not. Bytes per GPU.
    """
    return allocated * frac


@term(
    title="loss blocks the allocator cannot reuse",
    equation="tokens × vocab × bytes_per_logit / tensor_ranks",
    source="public-rows",
    exactness="fitted",
    changes_it="a fused loss; expandable segments; a current transformers",
)
def reserved_logits_bytes(tokens: Array, vocab: Array, bytes_per_logit: float, tensor_ranks: Array) -> Array:
    """Blocks as large as the logits that stay reserved between the loss's forward and backward: upcast and shifted copies of
    several sizes, of which earlier versions of the loss made more.

    Equation: k · T · V, k fitted where the loss is not fused. Bytes per GPU.
    """
    return tokens * vocab * bytes_per_logit / tensor_ranks


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
