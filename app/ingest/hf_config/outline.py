"""From blocks to a model: grouping equal layers, embeddings, and the head that the named class carries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from app.domain.errors import UnsupportedModelError
from app.domain.model.architecture import Architecture, Attention, Block, Role, Stack, Weight
from app.domain.model.weights import embedding, linear
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields

Task = Literal["lm", "masked_lm", "pretraining", "base", "sequence", "token", "question", "choice", "image"]

_TASKS: tuple[tuple[str, Task], ...] = (
    ("ForCausalLM", "lm"),
    ("LMHeadModel", "lm"),
    ("ForConditionalGeneration", "lm"),
    ("MTModel", "lm"),
    ("ForMaskedLM", "masked_lm"),
    ("ForPreTraining", "pretraining"),
    ("ForSequenceClassification", "sequence"),
    ("ForTokenClassification", "token"),
    ("ForQuestionAnswering", "question"),
    ("ForMultipleChoice", "choice"),
    ("ForImageClassification", "image"),
    ("Model", "base"),
)


def task_of(f: Fields, default: Task = "lm") -> Task:
    """What sits on top of the trunk, by the suffix of architectures[0]; ``default`` where it is not given.

    Raises:
        UnsupportedModelError: a class whose head is not known; it is never counted as another.
    """
    name = class_name_of(f)
    found = next((task for suffix, task in _TASKS if name.endswith(suffix)), None)
    if not name:
        return default
    if found is None or (found == "base" and ("For" in name or "Heads" in name)):
        raise no_such_head(f)
    return found


def no_such_head(f: Fields) -> UnsupportedModelError:
    """The error for a class whose head this family is not read with."""
    return f.unsupported("architectures", f"{class_name_of(f)[:80]} carries a head that is not read for {f.model_type}")


def class_name_of(f: Fields) -> str:
    """architectures[0], or empty."""
    names = f.texts("architectures")
    return names[0] if names else ""


def suffix_of(f: Fields, default: str) -> str:
    """The part of architectures[0] that says the task (``ForCausalLM``); ``default`` where it is not given."""
    name = class_name_of(f)
    known = (suffix for suffix, _ in _TASKS if name.endswith(suffix))
    return next(known, default)


def model_class(f: Fields, prefix: str, default_suffix: str) -> str:
    """The class to build: the trunk's own name where the config gives one, else prefix and task."""
    return class_name_of(f) if task_of(f) == "base" else prefix + suffix_of(f, default_suffix)


def label_count(f: Fields) -> int:
    """Classes of a classification head: num_labels, else the length of id2label, else 2."""
    labels = f.raw("id2label")
    if not f.has("num_labels") and isinstance(labels, dict) and labels:
        return len(labels)
    return f.integer("num_labels", default=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The sizes every decoder has, checked against each other."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @classmethod
    def read(cls, f: Fields, *, grouped: bool = True) -> Dims:
        """Read the sizes; ``grouped`` says whether the family knows num_key_value_heads."""
        hidden = f.required("hidden_size", high=MAX_WIDTH)
        heads = f.required("num_attention_heads", high=MAX_WIDTH)
        kv = f.optional("num_key_value_heads", high=MAX_WIDTH) if grouped else heads
        kv = heads if kv is None else kv
        if heads % kv and not f.missing:
            given = f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv}"
            raise f.invalid("num_key_value_heads", given, "query heads share key/value heads in equal groups")
        return cls(
            hidden_size=hidden,
            num_layers=f.required("num_hidden_layers", high=MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=kv,
            head_dim=head_dim(f, hidden, heads),
            vocab_size=f.required("vocab_size", high=MAX_VOCAB),
        )

    def attention(self, window: int | None = None, *, causal: bool = True) -> Attention:
        """The grouped attention of these sizes."""
        return Attention(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.head_dim,
            window=window,
            causal=causal,
        )


def head_dim(f: Fields, hidden_size: int, num_heads: int) -> int:
    """The head size given, or hidden_size / num_heads, which then has to come out even."""
    given = f.optional("head_dim", "kv_channels", high=MAX_WIDTH)
    if given is not None:
        return given
    if hidden_size % num_heads and not f.missing:
        msg = f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads} and head_dim is not given"
        raise f.invalid("num_attention_heads", msg)
    return max(hidden_size // num_heads, 1)


def group(kinds: Iterable[Hashable], build: Callable[..., Block]) -> tuple[Stack, ...]:
    """One stack for each distinct kind of layer, in order of first appearance; ``build`` gets the kind's parts."""
    counts: dict[Hashable, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(Stack(block=build(*kind) if isinstance(kind, tuple) else build(kind), count=count) for kind, count in counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Everything of a decoder but its layers.

    Attributes:
        prefix: class prefix in the library (``Llama``).
        embed_size: width of the embedding table where it differs from hidden_size.
        outside: positions, embedding norms and the like.
        final: the last norm.
        head_bias: whether the output head has a bias of vocab_size.
        kind: see ``Architecture.kind``.
        default_suffix: class suffix where the config names none.
    """

    prefix: str
    hidden_size: int
    vocab_size: int
    embed_size: int | None = None
    outside: tuple[Weight, ...] = ()
    final: tuple[Weight, ...] = ()
    head_bias: bool = False
    kind: Literal["decoder", "ssm"] = "decoder"
    default_suffix: str = "ForCausalLM"
    embed_name: str = "embed_tokens"
    head_name: str = "lm_head"


def decoder(f: Fields, outline: Outline, stacks: tuple[Stack, ...]) -> Architecture:
    """A decoder with the head that architectures[0] names; a causal language model where it names none."""
    task = task_of(f)
    tied = f.flag("tie_word_embeddings")
    width = outline.embed_size or outline.hidden_size
    lm = task == "lm"
    return Architecture(
        name="",
        family=f.model_type,
        kind=outline.kind,
        hidden_size=outline.hidden_size,
        vocab_size=outline.vocab_size if lm else 0,
        tied_embeddings=tied and lm,
        stacks=stacks,
        weights=(
            embedding(outline.embed_name, outline.vocab_size, width),
            *outline.outside,
            *outline.final,
            *_decoder_head(f, outline, task, tied=tied),
        ),
        max_seq_len=f.optional("max_position_embeddings", "max_sequence_length", "seq_length", "max_seq_len"),
        model_class=model_class(f, outline.prefix, outline.default_suffix),
    )


def _decoder_head(f: Fields, outline: Outline, task: Task, *, tied: bool) -> tuple[Weight, ...]:
    width = outline.embed_size or outline.hidden_size
    if task == "lm":
        matrix = () if tied else (Weight(outline.head_name, (outline.vocab_size, width), Role.HEAD),)
        bias = (Weight(f"{outline.head_name}.bias", (outline.vocab_size,), Role.BIAS),) if outline.head_bias else ()
        return (*matrix, *bias)
    if task == "sequence":
        return (Weight("score", (label_count(f), width), Role.HEAD),)
    if task == "token":
        labels = label_count(f)
        return (Weight("score", (labels, outline.hidden_size), Role.HEAD), Weight("score.bias", (labels,), Role.BIAS))
    if task == "question":
        return linear("qa_outputs", 2, width, bias=True)
    if task != "base":
        raise no_such_head(f)
    return ()
