"""What is said about the model and the machines as they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.domain.cluster.cluster import Pool
from app.domain.plan import PlanWarning
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.base import warning


def model_warnings(evaluation: Evaluation) -> Iterator[PlanWarning]:
    """What was inferred, and sequences longer than the model was made for."""
    model, seq_len = evaluation.setup.model, evaluation.setup.recipe.seq_len
    for assumption in model.inferred:
        yield warning("model_inferred", assumption, "model", "Give model.shape or model.hf_config for exact figures.", "info")
    if model.max_seq_len and seq_len > model.max_seq_len:
        yield warning(
            "beyond_positions", f"seq_len {seq_len:,} is longer than the {model.max_seq_len:,} positions the model was made for.",
            "training.seq_len", "Shorten the sequences or scale the position embedding.",
        )  # fmt: skip


def cluster_warnings(evaluation: Evaluation, pools: Sequence[Pool]) -> Iterator[PlanWarning]:
    """Which pools are used, and what is not known of them."""
    used = evaluation.setup.pool.members
    if len(pools) > 1:
        left = [str(i) for i in range(len(pools)) if i not in used]
        what = f"Use pool {', '.join(map(str, used))}" + (f" and leave pool {', '.join(left)} out" if left else " together")
        yield warning(
            "pools_used", f"{what}: a synchronous job runs at the pace, and in the memory, of its slowest rank.", "cluster.pools",
            "Pools are numbered from 0 in the order given.", "info",
        )  # fmt: skip
    if evaluation.setup.pool.node.host_memory_bytes is None:
        yield warning(
            "host_memory_unknown",
            "The node's host memory is not known, so loading and offload are not judged.",
            "cluster.pools.0.host_memory_gib",
            "Give host_memory_gib.",
            "info",
        )
