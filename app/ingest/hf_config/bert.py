"""Encoders: BERT, RoBERTa, XLM-R, CamemBERT, ERNIE, ELECTRA, MPNet, DistilBERT, ALBERT, DeBERTa-v2/v3.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Role, Stack, Weight
from app.domain.model.weights import conv, embedding, linear, norm
from app.ingest.hf_config.encoder import EncoderRules, assemble, embed_size, embeddings, encoder_block
from app.ingest.hf_config.fields import MAX_LAYERS, Fields
from app.ingest.hf_config.outline import Dims, no_such_head, task_of
from app.ingest.hf_config.registry import family

BERTS: dict[str, EncoderRules] = {
    "bert": EncoderRules(prefix="Bert", layer="BertLayer"),
    "ernie": EncoderRules(prefix="Ernie", layer="ErnieLayer"),
    "roberta": EncoderRules(prefix="Roberta", layer="RobertaLayer", head="roberta"),
    "xlm-roberta": EncoderRules(prefix="XLMRoberta", layer="XLMRobertaLayer", head="roberta"),
    "camembert": EncoderRules(prefix="Camembert", layer="CamembertLayer", head="roberta"),
    "electra": EncoderRules(prefix="Electra", layer="ElectraLayer", head="electra"),
}
_MPNET = EncoderRules(
    prefix="MPNet",
    layer="MPNetLayer",
    projections=("q", "k", "v", "o"),
    head="roberta",
    types=False,
    norm_names=("attention.LayerNorm", "output.LayerNorm"),
)
_DISTIL = EncoderRules(
    prefix="DistilBert",
    layer="TransformerBlock",
    projections=("q_lin", "k_lin", "v_lin", "out_lin"),
    mlp_names=("lin1", "lin2"),
    head="distilbert",
    types=False,
    norm_names=("sa_layer_norm", "output_layer_norm"),
)
_ALBERT = EncoderRules(
    prefix="Albert",
    layer="AlbertLayer",
    mlp_names=("ffn", "ffn_output"),
    head="albert",
    norm_names=("attention.LayerNorm", "full_layer_layer_norm"),
)
_DEBERTA = EncoderRules(
    prefix="DebertaV2",
    layer="DebertaV2Layer",
    projections=("query_proj", "key_proj", "value_proj", "dense"),
    head="deberta",
)


@family(*BERTS, classes=("BertForMaskedLM",))
def bert(f: Fields) -> Architecture:
    """BERT and the families that keep its layer; ELECTRA embeds in its own width."""
    rules = BERTS[f.model_type]
    dims = Dims.read(f, grouped=False)
    width = embed_size(f, dims.hidden_size)
    weights = embeddings(f, rules, dims)
    if width != dims.hidden_size:
        weights += linear("embeddings_project", dims.hidden_size, width, bias=True)
    stack = Stack(block=encoder_block(f, rules, dims), count=dims.num_layers)
    return assemble(f, rules, dims, (stack,), weights)


_PRE_NORM = {
    "megatron-bert": EncoderRules(prefix="MegatronBert", layer="MegatronBertLayer", norm_names=("attention.ln", "ln"), final_norm=True),
    "xlm-roberta-xl": EncoderRules(
        prefix="XLMRobertaXL",
        layer="XLMRobertaXLLayer",
        head="roberta",
        norm_names=("attention.self_attn_layer_norm", "LayerNorm"),
        final_norm=True,
    ),
}
_LONGFORMER = EncoderRules(prefix="Longformer", layer="LongformerLayer", head="roberta")
_BIG_BIRD = EncoderRules(prefix="BigBird", layer="BigBirdLayer", head="electra")


@family(*_PRE_NORM)
def pre_norm_bert(f: Fields) -> Architecture:
    """Megatron-BERT and XLM-R XL: norms before the branches, one at the end instead of one at the embeddings."""
    rules = _PRE_NORM[f.model_type]
    dims = Dims.read(f, grouped=False)
    stack = Stack(block=encoder_block(f, rules, dims), count=dims.num_layers)
    return assemble(f, rules, dims, (stack,), embeddings(f, rules, dims))


@family("longformer", classes=("LongformerForMaskedLM",))
def longformer(f: Fields) -> Architecture:
    """Longformer: windowed attention with a second set of projections for global tokens."""
    dims = Dims.read(f, grouped=False)
    hidden = dims.hidden_size
    names = ("query_global", "key_global", "value_global")
    extra = tuple(weight for name in names for weight in linear(name, hidden, hidden, bias=True))
    block = encoder_block(f, _LONGFORMER, dims, extra)
    sizes = f.integers("attention_window", low=1) if isinstance(f.raw("attention_window"), list) else None
    window = max(sizes) if sizes else f.integer("attention_window", default=512)
    near = replace(block, attention=dims.attention(window, causal=False))
    stack = Stack(block=near, count=dims.num_layers)
    return assemble(f, _LONGFORMER, dims, (stack,), embeddings(f, _LONGFORMER, dims))


@family("big_bird", classes=("BigBirdForMaskedLM",))
def big_bird(f: Fields) -> Architecture:
    """BigBird: BERT's layer; every class keeps the pooler."""
    dims = Dims.read(f, grouped=False)
    if task_of(f, "masked_lm") in ("question", "choice", "pretraining"):
        raise no_such_head(f)
    pooler = linear("pooler", dims.hidden_size, dims.hidden_size, bias=True)
    stack = Stack(block=encoder_block(f, _BIG_BIRD, dims), count=dims.num_layers)
    return assemble(f, _BIG_BIRD, dims, (stack,), embeddings(f, _BIG_BIRD, dims) + pooler)


@family("mpnet", classes=("MPNetForMaskedLM",))
def mpnet(f: Fields) -> Architecture:
    """MPNet: one shared table of relative position biases."""
    dims = Dims.read(f, grouped=False)
    buckets = f.integer("relative_attention_num_buckets", default=32)
    table = Weight("relative_attention_bias", (buckets, dims.num_heads), Role.OTHER)
    stack = Stack(block=encoder_block(f, _MPNET, dims), count=dims.num_layers)
    return assemble(f, _MPNET, dims, (stack,), (*embeddings(f, _MPNET, dims), table))


@family("distilbert", classes=("DistilBertForMaskedLM",))
def distilbert(f: Fields) -> Architecture:
    """DistilBERT: no segments, no pooler; keys dim, hidden_dim, n_heads, n_layers."""
    dims = Dims.read(f, grouped=False)
    block = encoder_block(f, _DISTIL, dims)
    return assemble(f, _DISTIL, dims, (Stack(block=block, count=dims.num_layers),), embeddings(f, _DISTIL, dims))


@family("albert", classes=("AlbertForMaskedLM",))
def albert(f: Fields) -> Architecture:
    """ALBERT: a few groups of layers run again and again; embeddings in their own width."""
    dims = Dims.read(f, grouped=False)
    groups = f.integer("num_hidden_groups", default=1, high=MAX_LAYERS)
    inner = f.integer("inner_group_num", default=1, high=MAX_LAYERS)
    width = embed_size(f, dims.hidden_size)
    weights = embeddings(f, _ALBERT, dims) + linear("embedding_hidden_mapping_in", dims.hidden_size, width, bias=True)
    block = encoder_block(f, _ALBERT, dims)
    stack = Stack(block=block, count=dims.num_layers * inner, distinct=groups * inner)
    return assemble(f, _ALBERT, dims, (stack,), weights)


@family("deberta-v2", classes=("DebertaV2ForMaskedLM",))
def deberta_v2(f: Fields) -> Architecture:
    """DeBERTa-v2 and v3: disentangled attention with relative embeddings, shared or with projections of their own."""
    dims = Dims.read(f, grouped=False)
    hidden = dims.hidden_size
    relative = f.flag("relative_attention")
    kinds = _position_kinds(f)
    extra: tuple[Weight, ...] = ()
    if relative and not f.flag("share_att_key"):
        extra += linear("pos_key_proj", hidden, hidden, bias=True) if "c2p" in kinds else ()
        extra += linear("pos_query_proj", hidden, hidden, bias=True) if "p2c" in kinds else ()
    width = embed_size(f, hidden)
    weights: tuple[Weight, ...] = (embedding("word_embeddings", dims.vocab_size, width),)
    if f.flag("position_biased_input", default=True):
        weights += (embedding("position_embeddings", f.integer("max_position_embeddings"), width),)
    if types := f.integer("type_vocab_size", default=0, low=0):
        weights += (embedding("token_type_embeddings", types, width),)
    if width != hidden:
        weights += linear("embed_proj", hidden, width)
    weights += norm("embeddings.LayerNorm", hidden, bias=True)
    weights += _deberta_shared(f, hidden, relative=relative)
    stack = Stack(block=encoder_block(f, _DEBERTA, dims, extra), count=dims.num_layers)
    return assemble(f, _DEBERTA, dims, (stack,), weights)


def _position_kinds(f: Fields) -> tuple[str, ...]:
    value = f.raw("pos_att_type")
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split("|"))
    return f.texts("pos_att_type") or ()


def _deberta_shared(f: Fields, hidden: int, *, relative: bool) -> tuple[Weight, ...]:
    found: tuple[Weight, ...] = ()
    if relative:
        buckets = f.optional("position_buckets", low=-1) or -1
        span = f.optional("max_relative_positions", low=-1) or -1
        span = span if span > 0 else f.integer("max_position_embeddings")
        found += (Weight("rel_embeddings", (2 * (buckets if buckets > 0 else span), hidden), Role.OTHER),)
    if "layer_norm" in f.text("norm_rel_ebd", default="none"):
        found += norm("encoder.LayerNorm", hidden, bias=True)
    if kernel := f.optional("conv_kernel_size", low=0):
        groups = f.integer("conv_groups", default=1)
        found += conv("conv", (hidden, max(hidden // groups, 1), kernel), bias=True)
        found += norm("conv.LayerNorm", hidden, bias=True)
    return found
