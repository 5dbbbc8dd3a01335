"""The peak: every moment summed for every candidate, the largest one named, and the three totals made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from app.domain.ledger import Ledger, Tally
from app.domain.memory.companions import add_beside, add_engines, host_moments, host_scope, moments_of
from app.domain.memory.host import add_host, host_peak
from app.domain.memory.moments import ALWAYS, MOMENTS
from app.domain.memory.nvme import add_nvme
from app.domain.memory.overhead import context_bytes, kept_frac, nccl_bytes, pool_bytes, reserved_extra_bytes, reserved_logits_bytes
from app.domain.memory.stages import busiest_stage, end_stages, last_is_busiest
from app.domain.memory.tensor import vocabulary_ranks
from app.domain.parallel.strategy import STRATEGIES
from app.domain.setup import Array, Columns, Numbers, TrainingSetup
from app.domain.share import Share, share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of every candidate.

    Attributes:
        gpu, overhead, host, nvme: ledgers with their lines.
        by_moment: allocated bytes per GPU, one row a moment in the order of ``moments_of``.
        moment: index of the peak moment.
        allocated, reserved, device: the three totals per GPU at the peak.
        roomy: device bytes on a device without end, where nothing makes the allocator give cached blocks back.
        expandable: reserved bytes with expandable segments.
        needed: device bytes without which the run fails: near capacity the allocator gives cached blocks back before it gives up.
        script_more: bytes at most by which the script written for it needs more than ``needed``, for what it does not split.
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
    roomy: Array
    expandable: Array
    needed: Array
    script_more: Array
    host_bytes: Array
    nvme_bytes: Array
    share: Share
    busiest: Share


def evaluate_memory(setup: TrainingSetup, numbers: Numbers, columns: Columns) -> Memory:
    """Evaluate every memory term for every candidate once."""
    share, size = share_of(setup, numbers, columns), len(columns)
    gpu, busiest = busiest_stage(setup, numbers, columns, share)
    moments = moments_of(setup)
    by_moment = np.stack([gpu.at(moment) for moment in moments])
    moment = by_moment.argmax(axis=0)
    allocated = by_moment[moment, np.arange(size)]
    overhead, host, nvme = Ledger(size), Ledger(size), Ledger(size)
    live = _live(overhead, setup, columns, (allocated, cached_peaks(gpu, columns, moments)))
    extra, unbounded = _add_cached(overhead, setup, columns, busiest, live)
    _add_elsewhere((host, nvme), setup, columns, share)
    return Memory(
        gpu=gpu, overhead=overhead, host=host, nvme=nvme, by_moment=by_moment, moment=moment, allocated=allocated,
        reserved=allocated + extra, device=allocated + extra + live.outside, roomy=allocated + unbounded + live.outside,
        expandable=np.minimum(allocated + extra, _expandable(setup, columns, live)),
        needed=allocated * (1 + setup.rates.needed_frac) + live.outside, script_more=_script_more(gpu, columns),
        host_bytes=host_peak(host, host_moments(setup)), nvme_bytes=nvme.total(), share=share, busiest=busiest,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTotals:
    """What the search compares: the fields of ``Memory`` of the same names, in the shapes they broadcast from."""

    device: Array
    roomy: Array
    needed: Array
    script_more: Array
    host_bytes: Array
    nvme_bytes: Array
    share: Share


def evaluate_totals(setup: TrainingSetup, numbers: Numbers, columns: Columns) -> MemoryTotals:
    """The totals of ``evaluate_memory`` by the same terms, without lines.

    Columns may have any shapes that broadcast: (S, 1) for what structure decides, (S, B) for batches.
    """
    share, shape = share_of(setup, numbers, columns), columns.shape
    stages = end_stages(setup, numbers, columns, (share, Tally))
    moments = moments_of(setup)
    peaks = [(reduce(np.maximum, [gpu.at(moment) for moment in moments]), cached_peaks(gpu, columns, moments)) for gpu, _ in stages]
    (allocated, pools), busiest = peaks[0], share
    if len(stages) > 1:
        last = last_is_busiest(peaks[0][0], peaks[1][0])
        allocated, pools = (np.where(last, of_last, of_first) for of_first, of_last in zip(*peaks, strict=True))
        busiest = replace(share, has_loss=np.where(last, stages[1][1].has_loss, share.has_loss))
    overhead, host, nvme = Tally(shape), Tally(shape), Tally(shape)
    live = _live(overhead, setup, columns, (allocated, pools))
    extra, unbounded = _add_cached(overhead, setup, columns, busiest, live)
    _add_elsewhere((host, nvme), setup, columns, share)
    return MemoryTotals(
        device=allocated + extra + live.outside, roomy=allocated + unbounded + live.outside,
        needed=allocated * (1 + setup.rates.needed_frac) + live.outside, script_more=_script_more(stages[0][0], columns),
        host_bytes=host_peak(host, host_moments(setup)), nvme_bytes=nvme.total(), share=share,
    )  # fmt: skip


def _add_elsewhere(ledgers: tuple[Tally, Tally], setup: TrainingSetup, columns: Columns, share: Share) -> None:
    """Add what all models have on the host and on its disks."""
    host, nvme = ledgers
    add_host(host_scope(host, setup), setup, columns, share)
    add_nvme(nvme, setup, columns, share)
    add_beside(host, nvme, setup, columns)


def _script_more(gpu: Tally, columns: Columns) -> Array:
    """What FSDP2's script keeps whole on every tensor rank, although the figures split it. Without stages, since no script has them."""
    fsdp2 = np.array([s.framework == "fsdp2" for s in STRATEGIES])[columns.row]
    more: Array = gpu.split_by_sequence() * np.where(fsdp2, columns.tp - 1, 0)
    return more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """Bytes per GPU: live tensors at the peak, the sum of the pools' own peaks, and what the process holds outside the allocator."""

    allocated: Array
    pools: Array
    outside: Array


def _live(overhead: Tally, setup: TrainingSetup, columns: Columns, peaks: tuple[Array, Array]) -> _Live:
    """Add what the process holds outside the allocator; returns it with the peaks of live tensors, all together and by pool."""
    rates = setup.rates
    context = overhead.add(context_bytes, "overhead", "always", ALWAYS, context=rates.context_bytes)
    nccl = overhead.add(nccl_bytes, "overhead", "always", ALWAYS, buffers=rates.nccl_bytes, several_ranks=(columns.world_size > 1) * 1.0)
    engines = add_engines(overhead, setup)
    return _Live(allocated=peaks[0], pools=peaks[1], outside=context + nccl + engines if setup.companions else context + nccl)


def _add_cached(ledger: Tally, setup: TrainingSetup, columns: Columns, share: Share, live: _Live) -> tuple[Array, Array]:
    """Add what the allocator holds above the live tensors; returns its sum, and what that would be on a device without end."""
    rates = setup.rates
    fsdp2, deepspeed = gathering(columns)
    deepspeed = deepspeed | flattening(columns)
    frac = np.select([fsdp2, deepspeed], [rates.reserved_frac_fsdp2, rates.reserved_frac_deepspeed], rates.reserved_frac_whole)
    pools = np.where(fsdp2 | deepspeed, live.pools, live.allocated)
    logits = {
        "tokens": share.tokens * share.has_loss, "vocab": 0 if setup.recipe.fused_loss else setup.model.vocab_size,
        "bytes_per_logit": np.where(fsdp2, 0.0, rates.reserved_logit_bytes), "tensor_ranks": vocabulary_ranks(columns),
    }  # fmt: skip
    unbounded = pools * (1 + frac) - live.allocated + reserved_logits_bytes(**logits, kept_frac=1.0)  # type: ignore[arg-type]
    room = setup.pool.node.gpu.memory_bytes - live.allocated - live.outside
    kept = kept_frac(unbounded, room, rates.needed_frac * live.allocated)
    total = ledger.add(pool_bytes, "overhead", "always", ALWAYS, sum_of_pool_peaks=pools, allocated=live.allocated, kept_frac=kept)
    total = total + ledger.add(reserved_extra_bytes, "overhead", "always", ALWAYS, allocated=pools, frac=frac, kept_frac=kept)
    total = total + ledger.add(reserved_logits_bytes, "overhead", "always", ALWAYS, **logits, kept_frac=kept)
    return total, unbounded


def _expandable(setup: TrainingSetup, columns: Columns, live: _Live) -> Array:
    """Reserved bytes where segments grow in place: the pools stay apart, their holes mostly close."""
    fsdp2, deepspeed = gathering(columns)
    gathered, whole = 1 + setup.rates.expandable_frac_gathered, 1 + setup.rates.expandable_frac_whole
    total: Array = np.where(fsdp2 | deepspeed, live.pools * gathered, live.allocated * whole)
    return total


def gathering(columns: Columns) -> tuple[Array, Array]:
    """Whether FSDP2, or DeepSpeed, moves tensors between ranks on streams of their own."""
    return (columns.fsdp2 > 0) & (columns.param_ranks > 1), (columns.deepspeed > 0) & (columns.zero_ranks > 1)


def flattening(columns: Columns) -> Array:
    """Whether DeepSpeed without sharding steps on flat copies of its part of a split model, beside which freed activations stay cached.

    The share fitted on runs of whole models has that effect in it; parts of models are counted by pool.
    """
    flattens: Array = (columns.deepspeed > 0) & (columns.zero_ranks == 1) & (columns.tp * columns.pp > 1)
    return flattens


def cached_peaks(ledger: Tally, columns: Columns, moments: Sequence[str] = MOMENTS) -> Array:
    """Sum of the peaks of what cannot use each other's blocks: streams, or flat buffers and everything else. Bytes per GPU."""
    flattens, pools = flattening(columns), pool_peaks(ledger, moments)
    peaks: Array = np.where(flattens, flat_peaks(ledger, moments), pools) if flattens.any() else pools
    return peaks


def pool_peaks(ledger: Tally, moments: Sequence[str] = MOMENTS) -> Array:
    """Sum of the peaks that each stream's allocator pool reaches on its own, bytes per GPU."""
    pools = (("default", "flat"), ("gather",), ("reduce",))
    peaks = [reduce(np.maximum, [ledger.at(moment, *pool) for moment in moments]) for pool in pools]
    total: Array = peaks[0] + peaks[1] + peaks[2]
    return total


def flat_peaks(ledger: Tally, moments: Sequence[str] = MOMENTS) -> Array:
    """Sum of the peaks of flat step buffers and of everything else, bytes per GPU."""
    flat = [ledger.at(moment, "flat") for moment in moments]
    rest = [ledger.at(moment) - buffers for moment, buffers in zip(moments, flat, strict=True)]
    total: Array = reduce(np.maximum, flat) + reduce(np.maximum, rest)
    return total
