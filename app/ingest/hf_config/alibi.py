"""Decoders from the ALiBi and multi-query years: BLOOM, Falcon, MPT.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture
from app.domain.model.weights import fused_attention, norm
from app.ingest.hf_config.classic import Classic, dropping, wide
from app.ingest.hf_config.fields import MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder
from app.ingest.hf_config.registry import family

_MLP = ("dense_h_to_4h", "dense_4h_to_h")


@family("bloom", classes=("BloomForCausalLM",))
def bloom(f: Fields) -> Architecture:
    """BLOOM: biases everywhere, no positions, a norm right after the embedding, tied."""
    dims = Dims.read(f.renamed(hidden_size="n_embed"), grouped=False)
    hidden, attention = dims.hidden_size, dims.attention()
    stacks = Classic(
        class_name="BloomBlock",
        hidden_size=hidden,
        attention_weights=fused_attention(hidden, attention, name="query_key_value", out_name="dense", qkv_bias=True, out_bias=True),
        ffn=4 * hidden,
        mlp_names=_MLP,
        norm_names=("input_layernorm", "post_attention_layernorm"),
        dropout=dropping(f, "hidden_dropout", "attention_dropout"),
    ).stack(attention, dims.num_layers)
    outline = Outline(
        prefix="Bloom",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        embed_name="word_embeddings",
        outside=norm("word_embeddings_layernorm", hidden, bias=True),
        final=norm("ln_f", hidden, bias=True),
    )
    return decoder(f, outline, stacks)


@family("falcon", "RefinedWeb", "RefinedWebModel", classes=("FalconForCausalLM", "RWForCausalLM"))
def falcon(f: Fields) -> Architecture:
    """Falcon: one key/value head (7B), a few with two norms (40B, 180B) or one (11B), or full heads (RW)."""
    old = f.model_type == "RefinedWeb"  # the first 40B config says it by its key/value heads alone
    f = f.retyped("falcon").renamed(num_attention_heads="n_head", num_hidden_layers="n_layer")
    plain = Dims.read(f, grouped=False)
    hidden = plain.hidden_size
    new = f.flag("new_decoder_architecture") or (old and f.has("n_head_kv"))
    if new:
        kv = f.integer("num_kv_heads", "n_head_kv", default=plain.num_heads, high=MAX_WIDTH)
    else:
        kv = 1 if f.flag("multi_query") else plain.num_heads
    if plain.num_heads % kv:
        raise f.invalid("num_kv_heads", f"num_attention_heads {plain.num_heads} is not a multiple of {kv}")
    attention = replace(plain, num_kv_heads=kv).attention()
    bias = f.flag("bias")
    stacks = Classic(
        class_name="FalconDecoderLayer",
        hidden_size=hidden,
        attention_weights=fused_attention(hidden, attention, name="query_key_value", out_name="dense", qkv_bias=bias, out_bias=bias),
        ffn=wide(f, hidden, "ffn_hidden_size"),
        mlp_names=_MLP,
        norm_names=_falcon_norms(f, new=new),
        mlp_bias=bias,
        parallel=new or f.flag("parallel_attn"),
        dropout=dropping(f, "hidden_dropout", "attention_dropout"),
    ).stack(attention, plain.num_layers)
    outline = Outline(
        prefix="Falcon",
        hidden_size=hidden,
        vocab_size=plain.vocab_size,
        embed_name="word_embeddings",
        final=norm("ln_f", hidden, bias=True),
    )
    return decoder(f, outline, stacks)


def _falcon_norms(f: Fields, *, new: bool) -> tuple[str, ...]:
    if new and f.integer("num_ln_in_parallel_attn", default=2) == 2:
        return ("ln_attn", "ln_mlp")
    if new or f.flag("parallel_attn"):
        return ("input_layernorm",)
    return ("input_layernorm", "post_attention_layernorm")


@family("mpt", classes=("MptForCausalLM", "MPTForCausalLM"))
def mpt(f: Fields) -> Architecture:
    """MPT: no biases, norms without shift, ALiBi, tied."""
    dims = Dims.read(f, grouped=False)
    hidden, attention = dims.hidden_size, dims.attention()
    stacks = Classic(
        class_name="MptBlock",
        hidden_size=hidden,
        attention_weights=fused_attention(hidden, attention, name="Wqkv", out_name="out_proj"),
        ffn=f.integer("expansion_ratio", default=4, high=1000) * hidden,
        mlp_names=("up_proj", "down_proj"),
        norm_names=("norm_1", "norm_2"),
        norm_bias=False,
        mlp_bias=False,
        dropout=dropping(f, "resid_pdrop", "emb_pdrop"),
    ).stack(attention, dims.num_layers)
    outline = Outline(
        prefix="Mpt",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        embed_name="wte",
        final=norm("norm_f", hidden),
    )
    return decoder(f, outline, stacks)
