"""Families whose code came with the checkpoint: Qwen 1, ChatGLM, Baichuan, InternLM2, DeepSeek-MoE, MiniCPM, EXAONE 3.

Source: the modelling files published with the checkpoints; counts agree with the published totals.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Block, Mlp, Stack
from app.domain.model.weights import fused_attention, fused_gated_mlp, linear, norm, norms
from app.ingest.hf_config.classic import dropping, projections
from app.ingest.hf_config.fields import MAX_WIDTH, Fields
from app.ingest.hf_config.mixture import shared_by_count
from app.ingest.hf_config.outline import Dims, Outline, class_name_of, decoder
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import DecoderRules, MoeRules, build

_NORMS = ("input_layernorm", "post_attention_layernorm")


def _named(f: Fields, found: Architecture, default: str) -> Architecture:
    """Remote classes keep the name the config gives."""
    return replace(found, model_class=class_name_of(f) or default)


@family("qwen", classes=("QWenLMHeadModel",))
def qwen(f: Fields) -> Architecture:
    """Qwen 1: intermediate_size is the sum of both GLU halves; q, k, v have biases although no_bias is true."""
    dims = Dims.read(f, grouped=False)
    hidden, attention = dims.hidden_size, dims.attention()
    ffn = f.required("intermediate_size", low=2) // 2
    bias = not f.flag("no_bias", default=True)
    block = Block(
        hidden_size=hidden,
        weights=(
            *fused_attention(hidden, attention, name="c_attn", out_name="c_proj", qkv_bias=True, out_bias=bias),
            *linear("w1", ffn, hidden, bias=bias),
            *linear("w2", ffn, hidden, bias=bias),
            *linear("mlp.c_proj", hidden, ffn, bias=bias),
            *norms(("ln_1", "ln_2"), hidden),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=True),
        dropout=dropping(f, "attn_dropout_prob", "emb_dropout_prob"),
        class_name="QWenBlock",
    )
    outline = Outline(
        prefix="QWen",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        embed_name="wte",
        final=norm("ln_f", hidden),
        default_suffix="LMHeadModel",
    )
    return _named(f, decoder(f, outline, (Stack(block=block, count=dims.num_layers),)), "QWenLMHeadModel")


@family("chatglm", classes=("ChatGLMModel", "ChatGLMForConditionalGeneration"))
def chatglm(f: Fields) -> Architecture:
    """ChatGLM2, ChatGLM3 and GLM-4-9B: one q/k/v matrix with bias, both GLU halves in dense_h_to_4h, untied."""
    named = f.renamed(num_hidden_layers="num_layers", intermediate_size="ffn_hidden_size", vocab_size="padded_vocab_size")
    plain = Dims.read(named, grouped=False)
    groups = plain.num_heads
    if f.flag("multi_query_attention"):
        groups = f.required("multi_query_group_num", high=MAX_WIDTH)
    if plain.num_heads % groups:
        raise f.invalid("multi_query_group_num", f"num_attention_heads {plain.num_heads} is not a multiple of {groups}")
    hidden, attention = plain.hidden_size, replace(plain, num_kv_heads=groups).attention()
    ffn, bias = named.required("intermediate_size"), f.flag("add_bias_linear")
    qkv_bias = bias or f.flag("add_qkv_bias")
    block = Block(
        hidden_size=hidden,
        weights=(
            *fused_attention(hidden, attention, name="query_key_value", out_name="dense", qkv_bias=qkv_bias, out_bias=bias),
            *fused_gated_mlp(hidden, ffn, ("dense_h_to_4h", "dense_4h_to_h"), bias=bias),
            *norms(_NORMS, hidden, bias=not f.flag("rmsnorm", default=True)),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=True),
        norm="rms" if f.flag("rmsnorm", default=True) else "layer",
        dropout=dropping(f, "hidden_dropout", "attention_dropout"),
        class_name="GLMBlock",
    )
    outline = Outline(
        prefix="ChatGLM",
        hidden_size=hidden,
        vocab_size=plain.vocab_size,
        embed_name="word_embeddings",
        head_name="output_layer",
        final=norm("final_layernorm", hidden) if f.flag("post_layer_norm", default=True) else (),
    )
    # the published configs name the bare model, yet the checkpoint and every use of it have the output layer
    as_lm = f.replaced(architectures=["ChatGLMForCausalLM"])
    found = decoder(as_lm, outline, (Stack(block=block, count=plain.num_layers),))
    return replace(found, model_class="ChatGLMForConditionalGeneration")


@family("baichuan", classes=("BaichuanForCausalLM", "BaiChuanForCausalLM"))
def baichuan(f: Fields) -> Architecture:
    """Baichuan 1 and 2: one W_pack matrix."""
    rules = DecoderRules(prefix="Baichuan", layer="DecoderLayer", fused_qkv="W_pack")
    return _named(f, build(f, rules), "BaichuanForCausalLM")


@family("internlm2", classes=("InternLM2ForCausalLM",))
def internlm2(f: Fields) -> Architecture:
    """InternLM2: one wqkv matrix, Llama otherwise."""
    dims = Dims.read(f)
    hidden, attention, ffn = dims.hidden_size, dims.attention(), f.required("intermediate_size")
    bias = f.flag("bias")
    block = Block(
        hidden_size=hidden,
        weights=(
            *fused_attention(hidden, attention, name="wqkv", out_name="wo", qkv_bias=bias, out_bias=bias),
            *linear("w1", ffn, hidden),
            *linear("w3", ffn, hidden),
            *linear("w2", hidden, ffn),
            *norms(("attention_norm", "ffn_norm"), hidden),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=True),
        class_name="InternLM2DecoderLayer",
    )
    outline = Outline(
        prefix="InternLM2",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        embed_name="tok_embeddings",
        head_name="output",
        final=norm("norm", hidden),
    )
    return decoder(f, outline, (Stack(block=block, count=dims.num_layers),))


def _deepseek_sparse(f: Fields, num_layers: int) -> tuple[bool, ...]:
    first = f.integer("first_k_dense_replace", default=0, low=0)
    step = f.integer("moe_layer_freq", default=1)
    return tuple(i >= first and i % step == 0 for i in range(num_layers))


@family("deepseek", classes=("DeepseekForCausalLM",))
def deepseek(f: Fields) -> Architecture:
    """DeepSeek-MoE 16B: plain attention, first layers dense, shared experts."""
    rules = DecoderRules(
        prefix="Deepseek",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        moe=MoeRules(count=("n_routed_experts",), shared=shared_by_count, sparse=_deepseek_sparse),
    )
    return build(f, rules)


@family("internlm", classes=("InternLMForCausalLM",))
def internlm(f: Fields) -> Architecture:
    """InternLM 1: Llama with biases on all four projections."""
    bias = f.flag("bias", default=True)
    return build(f, DecoderRules(prefix="InternLM", qkv_bias=bias, out_bias=bias))


@family("minicpm", classes=("MiniCPMForCausalLM",))
def minicpm(f: Fields) -> Architecture:
    """MiniCPM 1B, 2B, 4B: Llama with scaled residuals, tied unless the config says otherwise."""
    tied = f.flag("tie_word_embeddings", default=True)
    rules = DecoderRules(prefix="MiniCPM", qkv_bias="attention_bias", out_bias="attention_bias")
    return build(f.replaced(tie_word_embeddings=tied), rules)


@family("Yi", "aquila", "xverse", classes=("YiForCausalLM",))
def llama_clone(f: Fields) -> Architecture:
    """Early copies of the Llama code under their own model_type."""
    prefix = {"Yi": "Yi", "aquila": "Aquila", "xverse": "Xverse"}[f.model_type]
    return build(f, DecoderRules(prefix=prefix))


@family("exaone", classes=("ExaoneForCausalLM",))
def exaone(f: Fields) -> Architecture:
    """EXAONE 3.0 and 3.5: Llama under its own tensor names, tie flag given in the config."""
    named = f.renamed(num_hidden_layers="num_layers")
    dims = Dims.read(named)
    hidden, attention, ffn = dims.hidden_size, dims.attention(), f.required("intermediate_size")
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    block = Block(
        hidden_size=hidden,
        weights=(
            *projections(hidden, attention, names=names, bias=(False,) * 4),
            *linear("c_fc_0", ffn, hidden),
            *linear("c_fc_1", ffn, hidden),
            *linear("c_proj", hidden, ffn),
            *norms(("ln_1", "ln_2"), hidden),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=True),
        dropout=dropping(f, "embed_dropout", "attention_dropout"),
        class_name="ExaoneBlock",
    )
    outline = Outline(
        prefix="Exaone",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        embed_name="wte",
        final=norm("ln_f", hidden),
    )
    return decoder(named, outline, (Stack(block=block, count=dims.num_layers),))
