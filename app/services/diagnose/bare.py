"""What a log says on its own, where model or devices are not known: the tensor by its stack, and arithmetic that works backwards."""

from __future__ import annotations

from app.domain.diagnose.matching import POOL_BYTES
from app.domain.diagnose.situation import DEFAULT_BUCKET, DEFAULT_SUB_GROUP, in_words
from app.domain.units import GIB, MIB, format_gib, format_number
from app.ingest.logs import LogFacts
from app.services.diagnose.asked import PartialRequest
from app.services.diagnose.result import NamedTensor, Remedy

_BY_HINT: tuple[tuple[str, str, str, str], ...] = (
    ("exp_avg_sq", "Adam's second moment (exp_avg_sq) of one optimizer partition", "optimizer_states", "P × 4 / ranks"),
    ("exp_avg", "Adam's first moment (exp_avg) of one optimizer partition", "optimizer_states", "P × 4 / ranks"),
    ("master", "fp32 master weights of one optimizer partition", "optimizer_states", "P × 4 / ranks"),
    ("optimizer", "one fp32 optimizer state (an Adam moment or the master) of one partition", "optimizer_states", "P × 4 / ranks"),
    ("attention", "attention scores, batch × heads × length × length (eager attention)", "activations", "B × H × S × S × bytes"),
    ("loss", "logits in fp32 in the loss, tokens × vocabulary", "logits", "B × S × V × 4"),
    ("head", "logits, tokens × vocabulary", "logits", "B × S × V × bytes"),
    ("experts", "intermediate of the routed experts", "activations", "B × S × k × ffn_e × bytes"),
    ("mlp", "intermediate of one feed-forward, tokens × its width", "activations", "B × S × ffn × bytes"),
    ("repeat_kv", "keys or values repeated for every head", "activations", "B × S × H × d × bytes"),
    ("embedding", "gradient or copy of the embedding, vocabulary × hidden size", "gradients", "V × h × bytes"),
    ("norms", "hidden states of one layer in fp32", "activations", "B × S × h × 4"),
    ("reduce", "gradient reduce bucket or reduce-scatter input", "buffers", "bucket × bytes"),
    ("gather", "gathered parameters", "parameters", "P_unit × bytes"),
    ("flatten", "flat copy of weights or gradients", "buffers", "P × 2 or P × 4 / ranks"),
    ("norm", "copies made for the gradient norm", "buffers", "8 × largest tensor"),
    ("dequantise", "dequantised weight of one layer", "buffers", "in × out × 2"),
    ("cache", "key/value cache", "activations", "2 × L × B × S × K × d × bytes"),
    ("load", "weights while the model is loaded", "parameters", "P × bytes"),
    ("upcast", "an fp32 copy of a 16-bit tensor", "buffers", "elements × 4"),
)
_ADAM = ("exp_avg_sq", "exp_avg", "master", "optimizer")
_ROUND_FRAC = 0.01


def tensor_of_stack(facts: LogFacts, ranks: int | None) -> NamedTensor | None:
    """The tensor that the stack names, with what follows from its size.

    Args:
        ranks: of the run, where they are known.
    """
    for hint in facts.hints:
        for key, name, category, symbols in _BY_HINT:
            if key == hint:
                confidence = 0.7 if facts.hints[0] == key else 0.5
                return NamedTensor(name=name, bytes=facts.gpu.requested, arithmetic=_backwards(key, symbols, facts, ranks),
                                   category=category,
                                   confidence_frac=confidence)  # fmt: skip
    return None


def _backwards(key: str, symbols: str, facts: LogFacts, ranks: int | None) -> str:
    requested = facts.gpu.requested
    if requested is None:
        return symbols
    if key not in _ADAM:
        fp32, half = in_words(round(requested / 4)), in_words(round(requested / 2))
        return f"{symbols} = {_shown(requested)}, which is {fp32} fp32 or {half} 16-bit elements"
    elements = requested / 4
    text = f"{symbols} = {_shown(requested)}, so P / ranks = {_shown(requested)} / 4 = {in_words(elements)}"
    if ranks and ranks > 1:
        text += f"; × {ranks} ranks = {in_words(elements * ranks)} parameters if it is a whole partition"
    if abs(elements - DEFAULT_SUB_GROUP) < _ROUND_FRAC * DEFAULT_SUB_GROUP:
        text += f"; it is also one sub-group of ZeRO-3 (sub_group_size {in_words(DEFAULT_SUB_GROUP)})"
    return text


def tensor_of_size(facts: LogFacts) -> NamedTensor | None:
    """What a size says by itself: a block of the allocator's pools, or DeepSpeed's default bucket."""
    requested = facts.gpu.requested
    if requested in POOL_BYTES:
        most = "1 MiB" if requested == POOL_BYTES[0] else "10 MiB"
        return NamedTensor(name=f"a tensor of at most {most}, for which the allocator asks for a block of {requested // MIB} MiB",
                           bytes=requested,
                           arithmetic="any small tensor; the GPU was full already", category="overhead", confidence_frac=0.9)  # fmt: skip
    for width in (2, 4):
        size = DEFAULT_BUCKET * width
        if requested is not None and abs(requested - size) <= max(2 * MIB, facts.gpu.rounding):
            return NamedTensor(name="gradient reduce bucket of DeepSpeed's default size", bytes=requested, category="buffers",
                               arithmetic=f"reduce_bucket_size × {width} = {in_words(DEFAULT_BUCKET)} × {width}",
                               confidence_frac=0.4)  # fmt: skip
    return None


def remedies_of(facts: LogFacts, asked: PartialRequest) -> list[Remedy]:
    """Changes whose least effect follows from the log alone."""
    gpu, training = facts.gpu, asked.training
    found = _of_tensor(facts)
    if gpu.requested is None or gpu.requested in POOL_BYTES:
        return found
    half, short = gpu.requested // 2, gpu.short
    activation = facts.phase in (None, "forward", "loss", "backward") and not set(_ADAM) & set(facts.hints)
    enough = short is not None and half >= short
    why = f"This request alone shrinks by {_shown(half)}, if it is an activation; so does every other one."
    if activation and (training.micro_batch or 2) > 1:
        batch = {"training.micro_batch": training.micro_batch // 2} if training.micro_batch else {"training.micro_batch": "half"}
        found.append(
            Remedy(
                label="half the micro-batch, twice the accumulation",
                settings=batch,
                frees_bytes=half,
                step_s_change=None,
                enough=enough,
                why=why,
            )
        )
    if activation and training.seq_len and training.seq_len > 1:
        length = {"training.seq_len": training.seq_len // 2}
        found.append(
            Remedy(
                label=f"sequences of {training.seq_len // 2:,} tokens",
                settings=length,
                frees_bytes=half,
                step_s_change=None,
                enough=enough,
                why=why,
            )
        )
    return [*found, *_offloads(facts, asked)]


def _of_tensor(facts: LogFacts) -> list[Remedy]:
    """What does away with the tensor that the stack names."""
    frees, short = facts.gpu.requested, facts.gpu.short
    enough = frees is not None and short is not None and frees >= short
    ways: list[tuple[str, dict[str, object], str]] = []
    first = next((hint for hint in facts.hints if hint in _AWAY), "")
    ways += _AWAY.get(first, ())
    return [
        Remedy(label=label, settings=dict(settings), frees_bytes=frees, step_s_change=None, enough=enough, why=why)
        for label, settings, why in ways
    ]


_AWAY: dict[str, tuple[tuple[str, dict[str, object], str], ...]] = {
    "attention": (
        ("flash or SDPA attention", {"training.attention": "flash"}, "The square score matrix never lives; no ZeRO stage divides it."),
        ("full activation checkpointing", {"training.activation_checkpointing": "full"}, "Scores of one layer live at a time."),
    ),
    "loss": (("a fused or chunked loss", {"training.fused_loss": True}, "The full logits never live; no ZeRO stage divides them."),),
    "head": (("a fused or chunked loss", {"training.fused_loss": True}, "The full logits never live; no ZeRO stage divides them."),),
    "mlp": (
        ("full activation checkpointing", {"training.activation_checkpointing": "full"}, "One tensor a block is kept."),
        ("a tiled feed-forward", {"training.tiled_mlp": True}, "One slice of the sequence is computed at a time."),
    ),
    "foreach": (("a fused optimizer", {"training.optimizer_implementation": "fused"}, "It makes no temporaries."),),
}  # fmt: skip


def _offloads(facts: LogFacts, asked: PartialRequest) -> list[Remedy]:
    free, constraints = facts.host.free, asked.constraints
    found = []
    sharded = constraints.strategy in ("zero1", "zero2", "zero3") or facts.framework == "deepspeed"
    if constraints.offload_optimizer in (None, "none") and (free or sharded):
        there = f" The node has {format_gib(free)} of host memory free." if free else ""
        found.append(Remedy(label="optimizer offload to host memory", settings={"constraints.offload_optimizer": "cpu"}, frees_bytes=None,
                            step_s_change=None,
                            enough=False,
                            why=f"12 bytes a parameter over the ranks leave the GPU; give the model to compute it.{there}"))  # fmt: skip
    if sharded:
        frees = 2 * DEFAULT_BUCKET
        taken = f"A bucket of the default {in_words(DEFAULT_BUCKET)} elements takes {format_gib(frees)}"
        found.append(Remedy(label="overlap_comm false, smaller buckets",
                            settings={"zero_optimization.overlap_comm": False, "zero_optimization.reduce_bucket_size": 50_000_000},
                            frees_bytes=round(0.9 * frees), step_s_change=None,
                            enough=facts.gpu.short is not None and 0.9 * frees >= facts.gpu.short,
                            why=f"{taken}; with overlap_comm stages 1 and 2 hold two."))  # fmt: skip
    return found


def cause_of(facts: LogFacts, tensor: NamedTensor | None) -> str:
    """One sentence about an out-of-memory log alone."""
    gpu = facts.gpu
    when = f" {_WHEN[facts.phase]}" if facts.phase else ""
    asked = f"a request for {_shown(gpu.requested)}" if gpu.requested else "an allocation"
    if tensor is not None:
        return f"The GPU ran out of memory{when}: {asked} failed, which is {tensor.name}."
    if gpu.short:
        share = f" ({100 * gpu.short / gpu.capacity:.2g} % of the card)" if gpu.capacity else ""
        return f"The GPU ran out of memory{when}: {asked} was {_shown(gpu.short)} too large{share}."
    return f"The GPU ran out of memory{when}: {asked} failed."


_WHEN = {
    "initialisation": "while the engine was built", "forward": "in forward", "loss": "in the loss", "backward": "in backward",
    "reduction": "while gradients were reduced", "step": "in the optimizer step", "load": "while the model was loaded",
    "save": "while it was saved",
}  # fmt: skip


def when(phase: str | None) -> str:
    """A phase as it stands in a sentence."""
    return _WHEN.get(phase or "", "")


def _shown(size: int | None) -> str:
    if size is None:
        return "an unknown size"
    return format_gib(size) if size >= GIB else f"{format_number(size / MIB)} MiB"
