"""The GPT line: GPT-2, StarCoder (GPTBigCode), GPT-Neo, GPT-J, CodeGen.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Stack, Weight
from app.domain.model.weights import embedding, fused_attention, norm
from app.ingest.hf_config.classic import Classic, dropping, projections, wide
from app.ingest.hf_config.fields import MAX_LAYERS, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import family

_MLP = ("c_fc", "c_proj")
_NORMS = ("ln_1", "ln_2")
_DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def _outline(f: Fields, dims: Dims, prefix: str, *, positions: bool = True, head_bias: bool = False) -> Outline:
    table = (embedding("wpe", f.required("max_position_embeddings"), dims.hidden_size),) if positions else ()
    return Outline(
        prefix=prefix,
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size,
        embed_name="wte",
        outside=table,
        final=norm("ln_f", dims.hidden_size, bias=True),
        head_bias=head_bias,
        default_suffix="LMHeadModel" if prefix == "GPT2" else "ForCausalLM",
    )


def _transposed(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    """GPT-2's Conv1D stores [in, out]."""
    return tuple(Weight(w.name, w.shape[::-1], w.role, w.copies) for w in weights)


@family("gpt2", classes=("GPT2LMHeadModel", "GPT2ForCausalLM"))
def gpt2(f: Fields) -> Architecture:
    """GPT-2: one c_attn matrix, learned positions, tied."""
    dims = Dims.read(f, grouped=False)
    hidden, attention = dims.hidden_size, dims.attention()
    block = Classic(
        class_name="GPT2Block",
        hidden_size=hidden,
        attention_weights=fused_attention(hidden, attention, name="c_attn", out_name="c_proj", qkv_bias=True, out_bias=True),
        ffn=wide(f, hidden, "n_inner"),
        mlp_names=_MLP,
        norm_names=_NORMS,
        dropout=dropping(f, *_DROPOUT),
    ).block(attention)
    stored = replace(block, weights=_transposed(block.weights))
    return decoder(f, _outline(f, dims, "GPT2"), (Stack(block=stored, count=dims.num_layers),))


@family("openai-gpt", classes=("OpenAIGPTLMHeadModel",))
def openai_gpt(f: Fields) -> Architecture:
    """GPT-1: as GPT-2 with the norms after each branch and none at the end."""
    dims = Dims.read(f, grouped=False)
    hidden, attention = dims.hidden_size, dims.attention()
    block = Classic(
        class_name="Block",
        hidden_size=hidden,
        attention_weights=fused_attention(hidden, attention, name="c_attn", out_name="c_proj", qkv_bias=True, out_bias=True),
        ffn=4 * hidden,
        mlp_names=_MLP,
        norm_names=_NORMS,
        dropout=dropping(f, *_DROPOUT),
    ).block(attention)
    stored = replace(block, weights=_transposed(block.weights))
    outline = replace(_outline(f, dims, "OpenAIGPT"), final=(), default_suffix="LMHeadModel")
    return decoder(f, outline, (Stack(block=stored, count=dims.num_layers),))


@family("gpt_bigcode", classes=("GPTBigCodeForCausalLM",))
def gpt_bigcode(f: Fields) -> Architecture:
    """StarCoder and SantaCoder: GPT-2 with one key/value head where multi_query is on."""
    plain = Dims.read(f, grouped=False)
    dims = replace(plain, num_kv_heads=1 if f.flag("multi_query") else plain.num_heads)
    hidden, attention = dims.hidden_size, dims.attention()
    stacks = Classic(
        class_name="GPTBigCodeBlock",
        hidden_size=hidden,
        attention_weights=fused_attention(hidden, attention, name="c_attn", out_name="c_proj", qkv_bias=True, out_bias=True),
        ffn=wide(f, hidden, "n_inner"),
        mlp_names=_MLP,
        norm_names=_NORMS,
        dropout=dropping(f, *_DROPOUT),
    ).stack(attention, dims.num_layers)
    return decoder(f, _outline(f, dims, "GPTBigCode"), stacks)


@family("gpt_neo", classes=("GPTNeoForCausalLM",))
def gpt_neo(f: Fields) -> Architecture:
    """GPT-Neo: no biases on q, k, v; local attention in every second layer by attention_types."""
    dims = Dims.read(f, grouped=False)
    hidden = dims.hidden_size
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    rules = Classic(
        class_name="GPTNeoBlock",
        hidden_size=hidden,
        attention_weights=projections(hidden, dims.attention(), names=names, bias=(False, False, False, True)),
        ffn=wide(f, hidden, "intermediate_size"),
        mlp_names=_MLP,
        norm_names=_NORMS,
        dropout=dropping(f, "resid_dropout", "embed_dropout", "attention_dropout"),
    )
    window = f.optional("window_size")
    windows = [window if kind == "local" else None for kind in _attention_layers(f, dims.num_layers)]
    stacks = group(windows, lambda size: rules.block(dims.attention(size)))
    return decoder(f, _outline(f, dims, "GPTNeo"), stacks)


def _attention_layers(f: Fields, num_layers: int) -> tuple[str, ...]:
    """Unroll ``[[["global", "local"], 16]]``; a config without it alternates."""
    listed = f.raw("attention_types")
    if listed is None:
        return tuple("local" if i % 2 else "global" for i in range(num_layers))
    found: list[str] = []
    for item in listed if isinstance(listed, list) else [None]:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], list) and isinstance(item[1], int)):
            raise f.invalid("attention_types", 'has to look like [[["global", "local"], 12]]')
        if not 0 < item[1] * len(item[0]) <= MAX_LAYERS:
            raise f.invalid("attention_types", f"{item[1]} repetitions of {len(item[0])} kinds of layer")
        found += [str(kind)[:20] for kind in item[0]] * item[1]
    if len(found) != num_layers and not f.missing:
        raise f.invalid("attention_types", f"{len(found)} layers for num_layers {num_layers}")
    return tuple(found)


@family("gptj", classes=("GPTJForCausalLM",))
def gptj(f: Fields) -> Architecture:
    """GPT-J: rotary, one norm for parallel branches, biases on the feed-forward and the head."""
    dims = Dims.read(f, grouped=False)
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = projections(dims.hidden_size, dims.attention(), names=names, bias=(False,) * 4)
    return _parallel(f, dims, "GPTJ", weights)


@family("codegen", classes=("CodeGenForCausalLM",))
def codegen(f: Fields) -> Architecture:
    """CodeGen: GPT-J with one q/k/v matrix."""
    dims = Dims.read(f, grouped=False)
    weights = fused_attention(dims.hidden_size, dims.attention(), name="qkv_proj", out_name="out_proj")
    return _parallel(f, dims, "CodeGen", weights)


def _parallel(f: Fields, dims: Dims, prefix: str, attention_weights: tuple[Weight, ...]) -> Architecture:
    stacks = Classic(
        class_name=f"{prefix}Block",
        hidden_size=dims.hidden_size,
        attention_weights=attention_weights,
        ffn=wide(f, dims.hidden_size, "n_inner"),
        mlp_names=("fc_in", "fc_out"),
        norm_names=("ln_1",),
        parallel=True,
        dropout=dropping(f, *_DROPOUT),
    ).stack(dims.attention(), dims.num_layers)
    return decoder(f, _outline(f, dims, prefix, positions=False, head_bias=True), stacks)
