"""Cards of what a save writes, of the host memory that turns it into one file, and of what inference holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.domain.cards import card_of, term
from app.domain.plan import TermResult


@term(title="weights", equation="params × bytes_each", source="torch-dcp", exactness="exact", changes_it="master_weights; an adapter")
def saved_weight_bytes(params: float, bytes_each: float) -> float:
    """Trained weights in the dtype they are stored in between steps, once over all ranks.

    Equation: Ψ · bytes

    Returns:
        Bytes per save.

    Source: torch distributed.checkpoint: replicas of a tensor are written by one rank only.

    Example: 8.03e9 weights kept in fp32.
        >>> saved_weight_bytes(8_030_261_248, 4) / 1e9
        32.121044992
    """
    return params * bytes_each


@term(title="tied table under its second name", equation="params × bytes_each", source="torch-dcp", exactness="exact")
def saved_tied_bytes(params: float, bytes_each: float) -> float:
    """A table that is embedding and head at once is two entries of the state dict, and both are written. Bytes per save."""
    return params * bytes_each


@term(title="optimizer states", equation="params × bytes_each", source="torch-dcp", exactness="exact", changes_it="the optimizer")
def saved_moment_bytes(params: float, bytes_each: float) -> float:
    """Moments of the optimizer in the dtype they are kept in. Bytes per save.

    Example: AdamW's two in fp32.
        >>> saved_moment_bytes(106_816, 8)
        854528
    """
    return params * bytes_each


@term(title="step counters", equation="tensors × bytes_each", source="torch-optim", exactness="exact")
def saved_counter_bytes(tensors: float, bytes_each: float) -> float:
    """The number of updates, which AdamW and Adafactor keep as a tensor of their own for every weight. Bytes per save."""
    return tensors * bytes_each


@term(title="random generators", equation="ranks × bytes_each", source="torch-dcp", exactness="exact")
def saved_generator_bytes(ranks: float, bytes_each: float) -> float:
    """Seed and offset of every rank's CUDA generator, from which dropout goes on. Bytes per save."""
    return ranks * bytes_each


@term(title="16-bit weights", equation="params × bytes_each", source="ds-checkpoint", exactness="exact")
def module_weight_bytes(params: float, bytes_each: float) -> float:
    """Stages 0 to 2 write the module's weights in the compute dtype, once; at stage 3 the masters alone hold them. Bytes per save."""
    return params * bytes_each


@term(title="frozen weights", equation="params × bytes_each × copies", source="ds-checkpoint", exactness="derived",
      changes_it="save_checkpoint(exclude_frozen_parameters=True)")  # fmt: skip
def saved_frozen_bytes(params: float, bytes_each: float, copies: float) -> float:
    """Weights that are not trained are saved with the rest: at stage 2 in the module and again as fragments.

    Equation: Ψ_frozen · bytes · copies. Bytes per save.

    Source: DeepSpeed engine.py ``_save_checkpoint`` and ``_common_checkpoint_state``.

    Example: the bf16 base of an adapter at stage 2.
        >>> saved_frozen_bytes(8_030_261_248, 2, 2) / 1e9
        32.121044992
    """
    return params * bytes_each * copies


@term(title="masters and optimizer states", equation="params × (master_bytes + state_bytes)", source="ds-checkpoint", exactness="derived",
      changes_it="the optimizer; master_weights")  # fmt: skip
def saved_partition_bytes(params: float, master_bytes: float, state_bytes: float) -> float:
    """Each rank's part of the masters and of the optimizer's states, over all ranks.

    Equation: 12·Ψ for Adam with fp32 masters; flat groups are padded to the ranks, which adds a few elements.

    Returns:
        Bytes per save.

    Source: DeepSpeed stage_1_and_2.py and stage3.py ``state_dict``, measured on stages 1 to 3.

    Example:
        >>> saved_partition_bytes(106_816, 4, 8)
        1281792
    """
    return params * (master_bytes + state_bytes)


@term(title="host memory: whole checkpoint in one process", equation="checkpoint_bytes", source="torch-dcp", exactness="derived")
def whole_host_bytes(checkpoint_bytes: float) -> float:
    """``dcp_to_torch`` reads every tensor, optimizer states too, before it writes one file. Bytes of one process."""
    return checkpoint_bytes


@term(title="host memory: model on the CPU", equation="params × bytes_each + largest_tensor × bytes_each", source="torch-dcp",
      exactness="derived")  # fmt: skip
def model_host_bytes(params: float, largest_tensor: float, bytes_each: float) -> float:
    """The model itself and one tensor on its way from the files. Bytes of one process."""
    return params * bytes_each + largest_tensor * bytes_each


@term(title="host memory: merging flat groups", equation="max(module_bytes, params × bytes_each + frozen_bytes)", source="ds-zero-to-fp32",
      exactness="derived")  # fmt: skip
def merged_host_bytes(params: float, bytes_each: float, frozen_bytes: float, module_bytes: float) -> float:
    """Stages 1 and 2: the masters are mapped from their files and joined into one vector; before that the module file is read whole.

    Returns:
        Bytes of one process, beside the page cache.

    Source: DeepSpeed utils/zero_to_fp32.py, ``_zero2_merge_trainable_params``.

    Example: 8.03e9 weights without frozen ones.
        >>> merged_host_bytes(8_030_261_248, 4, 0, 16_060_522_496) / 1e9
        32.121044992
    """
    return max(module_bytes, params * bytes_each + frozen_bytes)


@term(title="host memory: one output file at a time", equation="min(file_bytes, params × bytes_each) + largest_tensor × bytes_each + "
      "frozen_bytes", source="ds-zero-to-fp32", exactness="derived", changes_it="--max_shard_size")  # fmt: skip
def lazy_host_bytes(params: float, bytes_each: float, largest_tensor: float, file_bytes: float, frozen_bytes: float) -> float:
    """Stage 3: masters are mapped from their files and gathered tensor by tensor into output files of at most 5 GB.

    Returns:
        Bytes of one process, beside the page cache.

    Source: DeepSpeed utils/zero_to_fp32.py, ``GatheredTensor``.

    Example: 70.6e9 weights whose largest tensor has 1.05e9 elements.
        >>> lazy_host_bytes(70.6e9, 4, 1.05e9, 5e9, 0) / 1e9
        9.2
    """
    return min(file_bytes, params * bytes_each) + largest_tensor * bytes_each + frozen_bytes


@term(title="host memory: 16-bit weights on rank 0", equation="params × bytes_each", source="ds-checkpoint", exactness="derived")
def gathered_host_bytes(params: float, bytes_each: float) -> float:
    """``save_16bit_model`` gathers layer after layer into rank 0's host memory, then writes one file. Bytes of one process."""
    return params * bytes_each


@term(title="host memory: files being cut anew", equation="workers × file_bytes", source="ds-checkpoint", exactness="derived",
      changes_it="--num_extract_workers")  # fmt: skip
def converter_host_bytes(workers: float, file_bytes: float) -> float:
    """``ds_to_universal`` reads whole optimizer files, one a worker. Bytes of the machine it runs on."""
    return workers * file_bytes


@term(title="weights at inference", equation="params × bytes_each", source="product", exactness="exact")
def inference_weight_bytes(params: float, bytes_each: float) -> float:
    """The whole model in 16 bits, adapters merged. Bytes over all GPUs that serve one copy."""
    return params * bytes_each


@term(title="keys and values of one token", equation="elements × bytes_each", source="product", exactness="exact",
      changes_it="the model: fewer key-value heads, latent attention, windows")  # fmt: skip
def token_cache_bytes(elements: float, bytes_each: float) -> float:
    """What the cache grows by with every token of every sequence, in 16 bits.

    Equation: Σ over layers of k·(d_k + d_v) for grouped heads, of the latent width for latent attention. Bytes per token.

    Example: 32 layers of 8 key-value heads of 128.
        >>> token_cache_bytes(32 * 8 * 256, 2)
        131072
    """
    return elements * bytes_each


def line(function: Callable[..., float], category: str, moment: str = "save", /, **arguments: float) -> TermResult:
    """A term with its numbers put in, for one candidate."""
    card, value = card_of(function), function(**arguments)
    return TermResult(
        name=card.title, category=category, value=float(round(value)), moment=moment, formula=card.with_numbers(arguments),
        equation=card.equation, source=card.source, exactness=card.sureness, changes_it=card.changes_it,
    )  # fmt: skip


def total_bytes(terms: Any) -> int:
    """Sum of terms."""
    return sum(int(t.value) for t in terms)
