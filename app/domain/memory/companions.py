"""Memory of the models beside the trained one: moments of their own, at which every other model holds what it always holds.

The peak of a GPU is the largest over all models' moments of what that model has then and what the others keep between their own.
"""

from __future__ import annotations

from app.domain.cards import term
from app.domain.companions import columns_of, setup_of
from app.domain.ledger import Scope, Tally
from app.domain.memory.activations import block_bytes
from app.domain.memory.buffers import root_gather_bytes, stage3_gather_bytes, unit_gather_bytes
from app.domain.memory.host import add_held, host_parameter_bytes, ranks_per_node
from app.domain.memory.loading import INITIALISE, LOAD, TRAIN, add_loading
from app.domain.memory.moments import ALWAYS, FORWARD, MOMENT_LABELS, MOMENTS, TRAINING
from app.domain.memory.nvme import add_nvme
from app.domain.memory.overhead import context_bytes
from app.domain.memory.states import parameter_bytes
from app.domain.memory.tensor import vocabulary_ranks
from app.domain.model.cache import cache_elements
from app.domain.recipe.companion import Companion
from app.domain.setup import Array, Columns, TrainingSetup
from app.domain.share import Share, share_of

_LOG_SOFTMAX_BYTES = 4.0


@term(title="working set of one forward", equation="tokens × bytes_per_token / tensor_ranks", source="hf-activations", exactness="derived",
      changes_it="the companion's micro_batch and seq_len")  # fmt: skip
def forward_working_bytes(tokens: Array, bytes_per_token: Array, tensor_ranks: Array) -> Array:
    """Tensors of the block at work in a forward that nothing goes backward through.

    Equation: T · c(block), all that one block makes; without a graph most of it is dropped earlier, so this is at most reached.

    Args:
        tokens: tokens of one micro-batch on this rank.
        bytes_per_token: bytes one block makes for one token, its input included.
        tensor_ranks: tensor-parallel ranks.

    Returns:
        Bytes per GPU.

    Source: the tensors counted for saved activations, those of one block.

    Example: 4,096 tokens of a block of Llama-2-7B.
        >>> round(forward_working_bytes(4096, 186496, 1) / 2**30, 2)
        0.71
    """
    return tokens * bytes_per_token / tensor_ranks


@term(title="logits of one forward", equation="tokens × vocab × bytes_per_logit / tensor_ranks", source="hf-loss", exactness="derived",
      changes_it="the companion's micro_batch; a fused loss; a value head, which has none")  # fmt: skip
def forward_logits_bytes(tokens: Array, vocab: int, bytes_per_logit: Array, tensor_ranks: Array) -> Array:
    """Logits of a frozen language model, and the fp32 copy that log-probabilities are taken from.

    Equation: T · V · (bytes + 4)

    Args:
        tokens: tokens of one micro-batch on this rank.
        vocab: vocabulary size; 0 where there is a value head.
        bytes_per_logit: bytes of both copies.
        tensor_ranks: ranks that split the vocabulary.

    Returns:
        Bytes per GPU.

    Source: transformers returns logits in the compute dtype; trainers upcast them for log_softmax.

    Example: 8,192 tokens of Llama-3's vocabulary in bf16.
        >>> forward_logits_bytes(8192, 128256, 6, 1) / 1e9
        6.304038912
    """
    return tokens * vocab * bytes_per_logit / tensor_ranks


@term(title="cache of keys and values", equation="tokens × elements × bytes_each / ranks", source="product", exactness="exact",
      changes_it="kv_cache_tokens; a model with fewer key and value heads")  # fmt: skip
def kv_cache_bytes(tokens: int, elements: int, bytes_each: Array, ranks: Array) -> Array:
    """Keys and values an inference engine keeps for the tokens it has room for.

    Equation: tokens · Σ layers (kv heads · (d_k + d_v)) · bytes / tp

    Args:
        tokens: tokens the engine has room for on each GPU.
        elements: elements one token adds over all layers.
        bytes_each: bytes of one element.
        ranks: tensor-parallel ranks that divide the heads.

    Returns:
        Bytes per GPU.

    Source: the model's own key and value widths.

    Example: 100,000 tokens of Llama-3-8B in bf16.
        >>> kv_cache_bytes(100_000, 65536, 2, 1) / 2**30
        12.20703125
    """
    return tokens * elements * bytes_each / ranks


def moments_of(setup: TrainingSetup) -> tuple[str, ...]:
    """Every moment of a job: those of the trained model, then each companion's own."""
    return (*MOMENTS, *(key for number, _ in enumerate(setup.companions) for key in _own_of(setup, number).values()))


def label_of(setup: TrainingSetup, moment: str) -> str:
    """A moment in words, with the role it is of."""
    number, _, own = moment.rpartition(".")
    return f"{setup.companions[int(number)].role}: {MOMENT_LABELS[own]}" if number else MOMENT_LABELS[own]


def _own_of(setup: TrainingSetup, number: int) -> dict[str, str]:
    """A companion's moments: all of a training step, or the forward alone."""
    moments = MOMENTS if setup.companions[number].trains else (FORWARD,)
    return {moment: f"{number}.{moment}" for moment in moments}


def gpu_scope(ledger: Tally, setup: TrainingSetup, number: int | None = None) -> Tally:
    """The trained model's way into the GPU's ledger, or a companion's by its number; the ledger itself where there is one model."""
    if not setup.companions:
        return ledger
    own = dict(zip(MOMENTS, MOMENTS, strict=True)) if number is None else _own_of(setup, number)
    mine = set(own.values())
    others = [moment for moment in moments_of(setup) if moment not in mine]
    role = "" if number is None else setup.companions[number].role
    return Scope(ledger, role, own, others=others, lasting=tuple(TRAINING))


def evaluated(setup: TrainingSetup, number: int, columns: Columns) -> tuple[Companion, TrainingSetup, Columns]:
    """A companion with the setup and the columns its formulas read."""
    companion = setup.companions[number]
    own = setup_of(setup, companion)
    return companion, own, columns_of(own, companion, columns)


def add_frozen(ledger: Tally, setup: TrainingSetup, companion: Companion, columns: Columns, share: Share) -> None:
    """Add the lines of a frozen model: its weights, and while it runs what is gathered, one block at work and the logits.

    Args:
        setup, columns, share: the companion's own.
    """
    c, weights = columns, share.inside + share.outside
    stays, divided = 0.0 if companion.on_host else 1.0, c.param_ranks > 1
    ledger.add(parameter_bytes, "parameters", "always", ALWAYS, params=weights * stays, bytes_each=c.frozen_bytes, ranks=c.param_ranks)
    if companion.on_host:
        # A whole model is copied to the GPU for its forward; a divided one comes block by block, with its gathers.
        ledger.add(parameter_bytes, "parameters", "forward", {FORWARD: 1.0}, params=weights * ~divided, bytes_each=c.frozen_bytes,
                   ranks=c.param_ranks)  # fmt: skip
    if divided.any():
        _add_gathers(ledger, c, share, divided)
    running = {FORWARD: 1.0}
    each = block_bytes(setup, c).whole
    ledger.add(forward_working_bytes, "activations", "forward", running, tokens=share.tokens, bytes_per_token=each, tensor_ranks=c.tp)
    # An engine works out logits for the last token of each sequence only.
    if setup.model.vocab_size and not setup.recipe.fused_loss and companion.cache_tokens is None:
        ledger.add(forward_logits_bytes, "logits", "forward", running, tokens=share.tokens * share.has_loss, vocab=setup.model.vocab_size,
                   bytes_per_logit=c.compute_bytes + _LOG_SOFTMAX_BYTES, tensor_ranks=vocabulary_ranks(c))  # fmt: skip
    if companion.cache_tokens:
        ledger.add(kv_cache_bytes, "buffers", "always", ALWAYS, tokens=companion.cache_tokens, elements=cache_elements(setup.model),
                   bytes_each=c.compute_bytes, ranks=c.tp * c.pp)  # fmt: skip


def _add_gathers(ledger: Tally, columns: Columns, share: Share, divided: Array) -> None:
    """What is whole for a while in a forward: two blocks and the root under FSDP2, the module and the prefetch bucket at stage 3."""
    c, running, fsdp2 = columns, {FORWARD: 1.0}, (columns.fsdp2 > 0) & divided
    ledger.add(root_gather_bytes, "parameters", "forward", running, params=share.outside * fsdp2, bytes_each=c.compute_bytes)
    ledger.add(unit_gather_bytes, "parameters", "forward", running, block_params=share.block * fsdp2, bytes_each=c.compute_bytes,
               copies=2.0)  # fmt: skip
    ahead = (c.prefetch + share.block) * (c.zero3 & divided)
    ledger.add(stage3_gather_bytes, "parameters", "forward", running, reuse=ahead * 0.0, ahead=ahead, bytes_each=c.compute_bytes)


def add_engines(ledger: Tally, setup: TrainingSetup) -> Array | float:
    """Add the CUDA contexts of inference engines, which run in processes of their own; returns their bytes per GPU."""
    total: Array | float = 0.0
    for companion in setup.companions:
        if companion.cache_tokens:
            scope = Scope(ledger, companion.role, dict(zip(MOMENTS, MOMENTS, strict=True)))
            total = total + scope.add(context_bytes, "overhead", "always", ALWAYS, context=setup.rates.context_bytes)
    return total


def host_scope(ledger: Tally, setup: TrainingSetup, number: int | None = None) -> Tally:
    """The same for the host's ledger: models are loaded one after another, and trained together."""
    if not setup.companions:
        return ledger
    numbers = [None, *range(len(setup.companions))]
    role = "" if number is None else setup.companions[number].role
    own = {LOAD: _loading(number), INITIALISE: INITIALISE, TRAIN: TRAIN}
    return Scope(ledger, role, own, others=[_loading(n) for n in numbers if n != number], lasting=(LOAD, INITIALISE, TRAIN))


def _loading(number: int | None) -> str:
    return LOAD if number is None else f"{number}.{LOAD}"


def host_moments(setup: TrainingSetup) -> tuple[str, ...]:
    """Moments of the host's memory."""
    return (LOAD, *(_loading(number) for number in range(len(setup.companions))), INITIALISE, TRAIN)


def add_beside(host: Tally, nvme: Tally, setup: TrainingSetup, columns: Columns) -> None:
    """Add what every companion has on the host and on disks."""
    for number in range(len(setup.companions)):
        companion, own, c = evaluated(setup, number, columns)
        share, ledger = share_of(own, own.numbers, c), host_scope(host, setup, number)
        per_node = ranks_per_node(setup, c)
        if companion.trains:
            add_held(ledger, own, c, share)
            add_nvme(Scope(nvme, companion.role, {}), own, c, share)
        elif companion.on_host:
            ledger.add(host_parameter_bytes, "parameters", "always", {LOAD: 1.0, INITIALISE: 1.0, TRAIN: 1.0},
                       params=(share.inside + share.outside), bytes_each=c.frozen_bytes, ranks=c.param_ranks,
                       ranks_per_node=per_node)  # fmt: skip
        add_loading(ledger, own, c, share, per_node)
