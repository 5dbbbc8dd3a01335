"""Encoder-decoders with fairseq names: BART, mBART, Pegasus, Marian, M2M-100 and NLLB, Blenderbot, PLBart, Whisper.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import conv, embedding, linear, norm, norms, two_layer_mlp
from app.ingest.hf_config.classic import dropping, projections
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import label_count, model_class, no_such_head, suffix_of, task_of
from app.ingest.hf_config.registry import family

_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
_DROPOUT = ("dropout", "attention_dropout", "activation_dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq2SeqRules:
    """How a family departs from BART.

    Attributes:
        prefix: class prefix in the library.
        positions: rows beyond max_position_embeddings in each position table; None where positions have no weights.
        embed_norm: a norm right after the embeddings of each side.
        final_norm: a norm at the end of each side.
    """

    prefix: str
    positions: int | None = 2
    embed_norm: bool = True
    final_norm: bool = False


SEQ2SEQ: dict[str, Seq2SeqRules] = {
    "bart": Seq2SeqRules(prefix="Bart"),
    "plbart": Seq2SeqRules(prefix="PLBart"),
    "mbart": Seq2SeqRules(prefix="MBart", final_norm=True),
    "pegasus": Seq2SeqRules(prefix="Pegasus", positions=0, embed_norm=False, final_norm=True),
    "marian": Seq2SeqRules(prefix="Marian", positions=0, embed_norm=False),
    "m2m_100": Seq2SeqRules(prefix="M2M100", positions=None, embed_norm=False, final_norm=True),
    "blenderbot": Seq2SeqRules(prefix="Blenderbot", positions=0, embed_norm=False, final_norm=True),
    "blenderbot-small": Seq2SeqRules(prefix="BlenderbotSmall", positions=0),
}


def side_stack(f: Fields, prefix: str, side: Literal["encoder", "decoder"], *, key_bias: bool = True, tokens: int | None = None) -> Stack:
    """The layers of one side; a decoder layer also attends to the encoder's output."""
    hidden = f.required("d_model", high=MAX_WIDTH)
    heads = f.required(f"{side}_attention_heads", high=MAX_WIDTH)
    ffn = f.required(f"{side}_ffn_dim")
    if hidden % heads and not f.missing:
        raise f.invalid(f"{side}_attention_heads", f"d_model {hidden} is not a multiple of {heads}")
    size = max(hidden // heads, 1)
    decodes = side == "decoder"
    attention = Attention(num_heads=heads, num_kv_heads=heads, head_dim=size, v_head_dim=size, causal=decodes)
    crossed = replace(attention, causal=False) if decodes else None
    bias = (True, key_bias, True, True)
    names = tuple(f"encoder_attn.{name}" for name in _NAMES)
    cross = projections(hidden, attention, names=(names[0], names[1], names[2], names[3]), bias=bias)
    norm_names = ("self_attn_layer_norm", *(("encoder_attn_layer_norm",) if decodes else ()), "final_layer_norm")
    block = Block(
        hidden_size=hidden,
        weights=(
            *projections(hidden, attention, names=_NAMES, bias=bias),
            *(cross if decodes else ()),
            *two_layer_mlp(hidden, ffn, ("fc1", "fc2")),
            *norms(norm_names, hidden, bias=True),
        ),
        attention=attention,
        cross_attention=crossed,
        mlp=Mlp(ffn_hidden_size=ffn, gated=False),
        norm="layer",
        num_norms=len(norm_names),
        dropout=dropping(f, *_DROPOUT),
        class_name=f"{prefix}{side.capitalize()}Layer",
    )
    layers = f.required(f"{side}_layers", high=MAX_LAYERS)
    return Stack(block=block, count=layers, part="main" if decodes else "encoder", tokens=tokens)


@family(*SEQ2SEQ, classes=("BartForConditionalGeneration",))
def seq2seq(f: Fields) -> Architecture:
    """BART and its relatives: one shared table, learned or sinusoidal positions, tied."""
    rules = SEQ2SEQ[f.model_type]
    hidden = f.required("d_model", high=MAX_WIDTH)
    vocab = f.required("vocab_size", high=MAX_VOCAB)
    side: tuple[Weight, ...] = ()
    if rules.positions is not None:
        side += (embedding("embed_positions", f.required("max_position_embeddings") + rules.positions, hidden),)
    if rules.embed_norm:
        side += norm("layernorm_embedding", hidden, bias=True)
    if rules.final_norm:
        side += norm("layer_norm", hidden, bias=True)
    lm = task_of(f) == "lm"
    tied = f.flag("tie_word_embeddings", default=True)
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder_decoder",
        hidden_size=hidden,
        vocab_size=vocab if lm else 0,
        tied_embeddings=lm and tied,
        stacks=(side_stack(f, rules.prefix, "encoder"), side_stack(f, rules.prefix, "decoder")),
        weights=(*_tables(f, vocab, hidden), *side, *side, *_head(f, vocab, hidden, tied=tied)),
        max_seq_len=f.optional("max_position_embeddings"),
        model_class=model_class(f, rules.prefix, "MTModel" if f.model_type == "marian" else "ForConditionalGeneration"),
    )


def _tables(f: Fields, vocab: int, hidden: int) -> tuple[Weight, ...]:
    if f.model_type == "marian" and not f.flag("share_encoder_decoder_embeddings", default=True):
        decoder_rows = f.optional("decoder_vocab_size", high=MAX_VOCAB) or vocab
        return (
            embedding("encoder.embed_tokens", vocab, hidden),
            embedding("decoder.embed_tokens", decoder_rows, hidden),
        )
    return (embedding("shared", vocab, hidden),)


def _head(f: Fields, vocab: int, hidden: int, *, tied: bool) -> tuple[Weight, ...]:
    task = task_of(f)
    if task == "lm":
        return () if tied else (Weight("lm_head", (vocab, hidden), Role.HEAD),)
    if task == "sequence":
        labels = label_count(f)
        dense = linear("classification_head.dense", hidden, hidden, bias=True)
        return (*dense, Weight("out_proj", (labels, hidden), Role.HEAD), Weight("out_proj.bias", (labels,), Role.BIAS))
    if task == "question":
        return linear("qa_outputs", label_count(f), hidden, bias=True)
    if task == "base":
        return ()
    raise no_such_head(f)


@family("whisper", classes=("WhisperForConditionalGeneration",))
def whisper(f: Fields) -> Architecture:
    """Whisper: two convolutions over mel frames, key projections without bias, tied."""
    hidden = f.required("d_model", high=MAX_WIDTH)
    vocab = f.required("vocab_size", high=MAX_VOCAB)
    frames = f.integer("max_source_positions", default=1500)
    mels = f.integer("num_mel_bins", default=80, high=MAX_WIDTH)
    if task_of(f) not in ("lm", "base"):
        raise no_such_head(f)
    lm, tied = task_of(f) == "lm", f.flag("tie_word_embeddings", default=True)
    return Architecture(
        name="",
        family="whisper",
        kind="encoder_decoder",
        hidden_size=hidden,
        vocab_size=vocab if lm else 0,
        tied_embeddings=lm and tied,
        stacks=(
            side_stack(f, "Whisper", "encoder", key_bias=False, tokens=frames),
            side_stack(f, "Whisper", "decoder", key_bias=False),
        ),
        weights=(
            *conv("conv1", (hidden, mels, 3), bias=True),
            *conv("conv2", (hidden, hidden, 3), bias=True),
            Weight("encoder.embed_positions", (frames, hidden), Role.OTHER),
            embedding("embed_tokens", vocab, hidden),
            embedding("embed_positions", f.integer("max_target_positions", default=448), hidden),
            *norms(("encoder.layer_norm", "decoder.layer_norm"), hidden, bias=True),
            *(() if tied or not lm else (Weight("proj_out", (vocab, hidden), Role.HEAD),)),
        ),
        max_seq_len=f.optional("max_target_positions"),
        model_class="Whisper" + suffix_of(f, "ForConditionalGeneration"),
    )
