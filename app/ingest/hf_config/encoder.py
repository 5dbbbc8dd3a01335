"""The BERT kind of encoder: one rule set for each family, and the heads that the named class carries.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.domain.model.architecture import Architecture, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import embedding, linear, norm, norms, two_layer_mlp
from app.ingest.hf_config.classic import dropping, projections
from app.ingest.hf_config.fields import MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Task, class_name_of, label_count, no_such_head, suffix_of, task_of

_HIDDEN_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRules:
    """How a family departs from BERT.

    Attributes:
        prefix: class prefix in the library; ``layer`` the class of one layer.
        projections: names of q, k, v and the output projection; ``mlp_names`` of the feed-forward.
        head: which heads the classes carry (``bert``: pooler under classifiers; ``roberta``: a dense layer instead;
            ``electra``, ``albert``, ``distilbert``, ``deberta``: their own).
        types: whether there are segment embeddings.
        norm_names: normalisations of one block.
        final_norm: the norm outside the blocks stands at the end, over the full width, not at the embeddings.
    """

    prefix: str
    layer: str
    projections: tuple[str, str, str, str] = ("query", "key", "value", "dense")
    mlp_names: tuple[str, str] = ("intermediate.dense", "output.dense")
    head: Literal["bert", "roberta", "electra", "albert", "distilbert", "deberta"] = "bert"
    types: bool = True
    norm_names: tuple[str, str] = ("attention.output.LayerNorm", "output.LayerNorm")
    final_norm: bool = False


def encoder_block(f: Fields, rules: EncoderRules, dims: Dims, extra: tuple[Weight, ...] = ()) -> Block:
    """One layer: biased projections, a two-matrix feed-forward, two layer norms."""
    attention = dims.attention(causal=False)
    ffn = f.required("intermediate_size", "hidden_dim")
    return Block(
        hidden_size=dims.hidden_size,
        weights=(
            *projections(dims.hidden_size, attention, names=rules.projections, bias=(True,) * 4),
            *two_layer_mlp(dims.hidden_size, ffn, rules.mlp_names),
            *norms(rules.norm_names, dims.hidden_size, bias=True),
            *extra,
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=False),
        norm="layer",
        dropout=dropping(f, *_HIDDEN_DROPOUT),
        class_name=rules.layer,
    )


def embed_size(f: Fields, hidden_size: int) -> int:
    """Width of the embedding tables (ELECTRA, ALBERT); hidden_size where not given."""
    return f.optional("embedding_size", high=MAX_WIDTH) or hidden_size


def embeddings(f: Fields, rules: EncoderRules, dims: Dims) -> tuple[Weight, ...]:
    """Word, position and segment tables and their norm."""
    width = embed_size(f, dims.hidden_size)
    found = [
        embedding("word_embeddings", dims.vocab_size, width),
        embedding("position_embeddings", f.integer("max_position_embeddings"), width),
    ]
    if rules.types and (types := f.integer("type_vocab_size", default=2, low=0)):
        found.append(embedding("token_type_embeddings", types, width))
    if f.flag("use_task_id"):
        found.append(embedding("task_type_embeddings", f.integer("task_type_vocab_size", default=3), width))
    name, size = ("encoder.ln", dims.hidden_size) if rules.final_norm else ("embeddings.LayerNorm", width)
    return (*found, *norm(name, size, bias=True))


def assemble(f: Fields, rules: EncoderRules, dims: Dims, stacks: tuple[Stack, ...], weights: tuple[Weight, ...]) -> Architecture:
    """The encoder with the head that architectures[0] names; masked language modelling where it names none."""
    task = task_of(f, "masked_lm")
    predicts = task in ("masked_lm", "lm") or (task == "pretraining" and rules.head != "electra")
    name = class_name_of(f) if task == "base" else rules.prefix + suffix_of(f, "ForMaskedLM")
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder",
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size if predicts else 0,
        tied_embeddings=predicts and f.flag("tie_word_embeddings", default=True),
        stacks=stacks,
        weights=weights + _heads(f, rules, dims, task),
        max_seq_len=f.optional("max_position_embeddings"),
        model_class=name,
    )


def _heads(f: Fields, rules: EncoderRules, dims: Dims, task: Task) -> tuple[Weight, ...]:
    hidden = dims.hidden_size
    pooler = linear("pooler.dense", hidden, hidden, bias=True)
    labels = label_count(f) if task in ("sequence", "token", "question") else 0
    if task in ("masked_lm", "lm") and not f.flag("add_cross_attention"):
        return _prediction(f, rules, dims)
    if task == "pretraining":
        if rules.head == "electra":
            return linear("discriminator.dense", hidden, hidden, bias=True) + _classifier(1, hidden)
        pairs = label_count(f) if rules.head == "albert" else 2
        return pooler + _prediction(f, rules, dims) + _classifier(pairs, hidden, "seq_relationship")
    if task == "base":
        return pooler if rules.head in ("bert", "roberta", "albert") else ()
    if task == "sequence":
        return pooler + _classifier(labels, hidden)
    if task == "choice":
        return pooler + _classifier(1, hidden)
    if task not in ("token", "question"):
        raise no_such_head(f)
    return _classifier(labels, hidden, "classifier" if task == "token" else "qa_outputs")


def _classifier(labels: int, hidden: int, name: str = "classifier") -> tuple[Weight, ...]:
    return (Weight(name, (labels, hidden), Role.HEAD), Weight(f"{name}.bias", (labels,), Role.BIAS))


def _prediction(f: Fields, rules: EncoderRules, dims: Dims) -> tuple[Weight, ...]:
    """A dense layer back to the embedding width, its norm, and the tied output matrix with a bias."""
    width = embed_size(f, dims.hidden_size)
    found = linear("transform.dense", width, dims.hidden_size, bias=True) + norm("transform.LayerNorm", width, bias=True)
    bias = Weight("predictions.bias", (dims.vocab_size,), Role.BIAS)
    if f.flag("tie_word_embeddings", default=True):
        return (*found, bias)
    own_bias = (bias,) if rules.head in ("bert", "roberta", "albert", "deberta") else ()
    return (*found, Weight("decoder", (dims.vocab_size, width), Role.HEAD), bias, *own_bias)
