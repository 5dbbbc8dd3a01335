"""Encoders with the modern block: ModernBERT and EuroBERT.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Block, Mlp, Role, Weight
from app.domain.model.weights import embedding, fused_attention, fused_gated_mlp, norm
from app.ingest.hf_config.classic import dropping
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.outline import Dims, Task, class_name_of, group, label_count, no_such_head, suffix_of, task_of
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import DecoderRules, layer

_EURO = DecoderRules(prefix="EuroBert", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")


def _architecture(f: Fields, prefix: str, dims: Dims) -> Architecture:
    task = task_of(f, "masked_lm")
    predicts = task == "masked_lm"
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder",
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size if predicts else 0,
        tied_embeddings=predicts and f.flag("tie_word_embeddings"),
        stacks=(),
        max_seq_len=f.optional("max_position_embeddings"),
        model_class=class_name_of(f) if task == "base" else prefix + suffix_of(f, "ForMaskedLM"),
    )


@family("modernbert", classes=("ModernBertForMaskedLM",))
def modernbert(f: Fields) -> Architecture:
    """ModernBERT: local and global attention, one Wi for both GLU halves; layer 0 has no attention norm."""
    dims = Dims.read(f, grouped=False)
    hidden, ffn = dims.hidden_size, f.required("intermediate_size")
    bias, mlp_bias, shift = f.flag("attention_bias"), f.flag("mlp_bias"), f.flag("norm_bias")
    window = f.integer("local_attention", default=128)

    def block(first: bool, is_local: bool) -> Block:
        attention = dims.attention(window if is_local else None, causal=False)
        return Block(
            hidden_size=hidden,
            weights=(
                *(() if first else norm("attn_norm", hidden, bias=shift)),
                *fused_attention(hidden, attention, name="Wqkv", out_name="Wo", qkv_bias=bias, out_bias=bias),
                *norm("mlp_norm", hidden, bias=shift),
                *fused_gated_mlp(hidden, ffn, ("Wi", "Wo"), bias=mlp_bias),
            ),
            attention=attention,
            mlp=Mlp(ffn_hidden_size=ffn, gated=True),
            norm="layer",
            num_norms=1 if first else 2,
            dropout=dropping(f, "attention_dropout", "mlp_dropout", "embedding_dropout"),
            class_name="ModernBertEncoderLayer",
        )

    types = f.texts("layer_types", length=dims.num_layers)
    step = f.integer("global_attn_every_n_layers", default=3)
    slides = [t == "sliding_attention" for t in types] if types else [i % step != 0 for i in range(dims.num_layers)]
    outside = (
        embedding("tok_embeddings", dims.vocab_size, hidden),
        *norm("embeddings.norm", hidden, bias=shift),
        *norm("final_norm", hidden, bias=shift),
        *_modern_head(f, dims, task_of(f, "masked_lm")),
    )
    stacks = group([(i == 0, slide) for i, slide in enumerate(slides)], block)
    return replace(_architecture(f, "ModernBert", dims), stacks=stacks, weights=outside)


def _modern_head(f: Fields, dims: Dims, task: Task) -> tuple[Weight, ...]:
    if task == "base":
        return ()
    hidden = dims.hidden_size
    bias = f.flag("classifier_bias")
    head = (
        Weight("head.dense", (hidden, hidden)),
        *((Weight("head.dense.bias", (hidden,), Role.BIAS),) if bias else ()),
        *norm("head.norm", hidden, bias=f.flag("norm_bias")),
    )
    if task == "masked_lm":
        matrix = () if f.flag("tie_word_embeddings") else (Weight("decoder", (dims.vocab_size, hidden), Role.HEAD),)
        shift = f.flag("decoder_bias", default=True)
        return head + matrix + ((Weight("decoder.bias", (dims.vocab_size,), Role.BIAS),) if shift else ())
    if task not in ("sequence", "token", "question", "choice"):
        raise no_such_head(f)
    labels = 1 if task == "choice" else label_count(f)
    return (*head, Weight("classifier", (labels, hidden), Role.HEAD), Weight("classifier.bias", (labels,), Role.BIAS))


@family("eurobert", classes=("EuroBertForMaskedLM",))
def eurobert(f: Fields) -> Architecture:
    """EuroBERT: a Llama block that sees both ways."""
    dims = Dims.read(f)
    hidden = dims.hidden_size
    task = task_of(f, "masked_lm")

    def block(_: str) -> Block:
        found = layer(f, _EURO, dims, window=None, sparse=False)
        return replace(found, attention=dims.attention(causal=False))

    outside = (embedding("embed_tokens", dims.vocab_size, hidden), *norm("norm", hidden))
    if task == "masked_lm" and not f.flag("tie_word_embeddings"):
        outside += (Weight("lm_head", (dims.vocab_size, hidden), Role.HEAD),)
    if task not in ("masked_lm", "base", "sequence", "token"):
        raise no_such_head(f)
    if task in ("sequence", "token"):
        labels = label_count(f)
        if task == "sequence":
            outside += (Weight("dense", (hidden, hidden)), Weight("dense.bias", (hidden,), Role.BIAS))
        outside += (Weight("classifier", (labels, hidden), Role.HEAD), Weight("classifier.bias", (labels,), Role.BIAS))
    stacks = group(["layer"] * dims.num_layers, block)
    return replace(_architecture(f, "EuroBert", dims), stacks=stacks, weights=outside)
