"""The peak: every moment summed for every candidate, the largest one named, and the three totals made from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, sqrt

import numpy as np

from app.domain.ledger import Ledger
from app.domain.memory.host import add_host, host_peak
from app.domain.memory.moments import ALWAYS, MOMENTS
from app.domain.memory.nvme import add_nvme
from app.domain.memory.overhead import context_bytes, nccl_bytes, pool_bytes, reserved_extra_bytes, reserved_logits_bytes
from app.domain.memory.stages import busiest_stage
from app.domain.memory.tensor import vocabulary_ranks
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share, share_of

Z_90 = 1.645
"""Half width of a 90 % interval of a normal error, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of every candidate.

    Attributes:
        gpu, overhead, host, nvme: ledgers with their lines.
        by_moment: allocated bytes per GPU, one row a moment in the order of ``MOMENTS``.
        moment: index of the peak moment.
        allocated, reserved, device: the three totals per GPU at the peak.
        needed: device bytes without which the run fails: near capacity the allocator gives cached blocks back before it gives up.
        host_bytes, nvme_bytes: per node.
        share: of the first pipeline stage, which has the most blocks to compute; busiest: of the stage the GPU's memory is of.
    """

    gpu: Ledger
    overhead: Ledger
    host: Ledger
    nvme: Ledger
    by_moment: Array
    moment: Array
    allocated: Array
    reserved: Array
    device: Array
    needed: Array
    host_bytes: Array
    nvme_bytes: Array
    share: Share
    busiest: Share


def evaluate_memory(setup: TrainingSetup, numbers: Numbers, columns: Columns) -> Memory:
    """Evaluate every memory term for every candidate once."""
    share, size = share_of(setup, numbers, columns), len(columns)
    gpu, busiest = busiest_stage(setup, numbers, columns)
    by_moment = np.stack([gpu.at(moment) for moment in MOMENTS])
    moment = by_moment.argmax(axis=0)
    allocated = by_moment[moment, np.arange(size)]
    overhead, rates = Ledger(size), setup.rates
    gathered = (columns.param_ranks > 1) | (columns.deepspeed > 0) & (columns.zero_ranks > 1)
    # DeepSpeed without sharding steps on flat copies of its whole part, beside which the blocks of freed activations stay cached.
    # The share fitted on runs of whole models has that effect in it; parts of models are counted by pool.
    flattens = ~gathered & (columns.deepspeed > 0) & (columns.tp * columns.pp > 1)
    frac = np.where(gathered | flattens, rates.reserved_frac_sharded, rates.reserved_frac_whole)
    pools = np.where(gathered, pool_peaks(gpu), np.where(flattens, flat_peaks(gpu), allocated)) - allocated
    extra = overhead.add(pool_bytes, "overhead", "always", ALWAYS, sum_of_pool_peaks=allocated + pools, allocated=allocated)
    extra = extra + overhead.add(reserved_extra_bytes, "overhead", "always", ALWAYS, allocated=allocated + pools, frac=frac)
    vocab = 0 if setup.recipe.fused_loss else setup.model.vocab_size
    extra = extra + overhead.add(reserved_logits_bytes, "overhead", "always", ALWAYS, tokens=share.tokens * busiest.has_loss, vocab=vocab,
                                 bytes_per_logit=rates.reserved_logit_bytes, tensor_ranks=vocabulary_ranks(columns))  # fmt: skip
    context = overhead.add(context_bytes, "overhead", "always", ALWAYS, context=rates.context_bytes)
    nccl = overhead.add(nccl_bytes, "overhead", "always", ALWAYS, buffers=rates.nccl_bytes, several_ranks=(columns.world_size > 1) * 1.0)
    host, nvme = Ledger(size), Ledger(size)
    add_host(host, setup, columns, share)
    add_nvme(nvme, setup, columns, share)
    return Memory(
        gpu=gpu, overhead=overhead, host=host, nvme=nvme, by_moment=by_moment, moment=moment, allocated=allocated,
        reserved=allocated + extra, device=allocated + extra + context + nccl,
        needed=allocated * (1 + rates.needed_frac) + context + nccl, host_bytes=host_peak(host), nvme_bytes=nvme.total(), share=share,
        busiest=busiest,
    )  # fmt: skip


def pool_peaks(ledger: Ledger) -> Array:
    """Sum of the peaks that each stream's allocator pool reaches on its own, bytes per GPU."""
    pools = (("default", "flat"), ("gather",), ("reduce",))
    peaks = [np.stack([sum(ledger.at(moment, name) for name in pool) for moment in MOMENTS]).max(axis=0) for pool in pools]
    total: Array = sum(peaks, np.zeros(ledger.size))
    return total


def flat_peaks(ledger: Ledger) -> Array:
    """Sum of the peaks of flat step buffers and of everything else, bytes per GPU."""
    flat = np.stack([ledger.at(moment, "flat") for moment in MOMENTS])
    rest = np.stack([ledger.at(moment) for moment in MOMENTS]) - flat
    total: Array = flat.max(axis=0) + rest.max(axis=0)
    return total


def fit_probability(device_bytes: float, capacity_bytes: float, interval_frac: float) -> float:
    """Probability that a run predicted to need ``device_bytes`` stays within the capacity.

    Equation: Φ((capacity − device) / σ) with σ = interval · device / 1.645, the error being taken as normal.

    Example:
        >>> round(fit_probability(80.0, 80.0, 0.1), 2), fit_probability(40.0, 80.0, 0.1) > 0.999
        (0.5, True)
    """
    sigma = max(1.0, interval_frac * device_bytes / Z_90)
    return 0.5 * (1 + erf((capacity_bytes - device_bytes) / (sigma * sqrt(2))))
