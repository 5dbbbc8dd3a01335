"""Older mixtures: Switch Transformers and NLLB-MoE (experts as modules of their own), JetMoE (experts in attention too).

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Attention, Block, Moe, Role, Stack, Weight
from app.domain.model.weights import embedding, linear, norm, norms
from app.ingest.hf_config.classic import dropping
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Outline, class_name_of, decoder, group, no_such_head, task_of
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.seq2seq import side_stack
from app.ingest.hf_config.t5 import T5Sizes, read_sizes


def _only_lm(f: Fields) -> bool:
    if task_of(f) not in ("lm", "base") or class_name_of(f).endswith("EncoderModel"):
        raise no_such_head(f)
    return task_of(f) == "lm"


def _modules(moe: Moe, hidden: int, names: tuple[str, str], *, bias: bool) -> tuple[Weight, ...]:
    """Each expert a module of two matrices; ``copies`` counts the experts."""
    count, ffn = moe.num_experts, moe.expert_ffn_hidden_size
    found: tuple[Weight, ...] = (
        Weight(f"experts.{names[0]}", (ffn, hidden), Role.EXPERT, count),
        Weight(f"experts.{names[1]}", (hidden, ffn), Role.EXPERT, count),
    )
    if bias:
        found += (
            Weight("experts.bias_in", (ffn,), Role.EXPERT, count),
            Weight("experts.bias_out", (hidden,), Role.EXPERT, count),
        )
    return found + linear("router", count, hidden)


@family("switch_transformers", classes=("SwitchTransformersForConditionalGeneration",))
def switch_transformers(f: Fields) -> Architecture:
    """Switch Transformers: T5 with one of many experts in every n-th layer, counted from the second of each run."""
    lm = _only_lm(f)
    sizes = read_sizes(f, "SwitchTransformers")
    vocab = f.required("vocab_size", high=MAX_VOCAB)
    layers = f.required("num_layers", high=MAX_LAYERS)
    moe = Moe(
        num_experts=f.required("num_experts", high=MAX_WIDTH),
        experts_per_token=1,
        expert_ffn_hidden_size=sizes.ffn,
        gated=False,
    )
    below = f.optional("num_decoder_layers", high=MAX_LAYERS) or layers
    stacks: tuple[Stack, ...] = ()
    for side, count in (("encoder", layers), ("decoder", below)):
        decodes = side == "decoder"
        sparse = f.integer(f"num_sparse_{side}_layers", default=3, low=0)
        step = count // sparse if sparse else count
        kinds = [step == 1 or (step > 0 and i % step == 1) for i in range(count)]
        part = group(kinds, lambda mixes, decodes=decodes: _switch_block(sizes, moe, decodes=decodes, mixes=mixes))
        stacks += tuple(replace(stack, part="main" if decodes else "encoder") for stack in part)
    tied = f.flag("tie_word_embeddings", default=True)
    side_weights = (*norm("final_layer_norm", sizes.hidden_size), sizes.bias_table())
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder_decoder",
        hidden_size=sizes.hidden_size,
        vocab_size=vocab if lm else 0,
        tied_embeddings=lm and tied,
        stacks=stacks,
        weights=(
            embedding("shared", vocab, sizes.hidden_size),
            *side_weights,
            *side_weights,
            *(() if tied or not lm else (Weight("lm_head", (vocab, sizes.hidden_size), Role.HEAD),)),
        ),
        model_class=class_name_of(f) or "SwitchTransformersForConditionalGeneration",
    )


def _switch_block(sizes: T5Sizes, moe: Moe, *, decodes: bool, mixes: bool) -> Block:
    block = sizes.block(decodes=decodes)
    if not mixes:
        return block
    kept = tuple(w for w in block.weights if w.name not in ("wi", "wo"))
    experts = _modules(moe, sizes.hidden_size, ("wi", "wo"), bias=False)
    return replace(block, weights=kept + experts, mlp=None, moe=moe)


@family("nllb-moe", classes=("NllbMoeForConditionalGeneration",))
def nllb_moe(f: Fields) -> Architecture:
    """NLLB-MoE: M2M-100 with two of many experts in every n-th layer."""
    lm = _only_lm(f)
    hidden, vocab = f.required("d_model", high=MAX_WIDTH), f.required("vocab_size", high=MAX_VOCAB)
    count = f.required("num_experts", high=MAX_WIDTH)
    stacks: tuple[Stack, ...] = ()
    for side in ("encoder", "decoder"):
        stack = side_stack(f, "NllbMoe", "encoder" if side == "encoder" else "decoder")
        step = f.integer(f"{side}_sparse_step", default=4, low=0)
        sparse = stack.count // step if step else 0
        moe = Moe(
            num_experts=count,
            experts_per_token=min(2, count),
            expert_ffn_hidden_size=f.required(f"{side}_ffn_dim"),
            gated=False,
        )
        kept = tuple(w for w in stack.block.weights if not w.name.startswith("fc"))
        experts = _modules(moe, hidden, ("fc1", "fc2"), bias=True)
        mixed = replace(stack.block, weights=kept + experts, mlp=None, moe=moe)
        counts = ((stack.block, stack.count - sparse), (mixed, sparse))
        stacks += tuple(replace(stack, block=block, count=n) for block, n in counts if n)
    tied = f.flag("tie_word_embeddings", default=True)
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder_decoder",
        hidden_size=hidden,
        vocab_size=vocab if lm else 0,
        tied_embeddings=lm and tied,
        stacks=stacks,
        weights=(
            embedding("shared", vocab, hidden),
            *norms(("encoder.layer_norm", "decoder.layer_norm"), hidden, bias=True),
            *(() if tied or not lm else (Weight("lm_head", (vocab, hidden), Role.HEAD),)),
        ),
        max_seq_len=f.optional("max_position_embeddings"),
        model_class=class_name_of(f) or "NllbMoeForConditionalGeneration",
    )


@family("jetmoe", classes=("JetMoeForCausalLM",))
def jetmoe(f: Fields) -> Architecture:
    """JetMoE: experts for queries and outputs of attention as well as for the feed-forward; keys and values shared."""
    hidden = f.required("hidden_size", high=MAX_WIDTH)
    kv, size = f.required("num_key_value_heads", high=MAX_WIDTH), f.required("kv_channels", high=MAX_WIDTH)
    count = f.required("num_local_experts", high=MAX_WIDTH)
    top_k = f.required("num_experts_per_tok", high=count)
    ffn, width = f.required("intermediate_size"), kv * size
    attention = Attention(num_heads=kv * top_k, num_kv_heads=kv, head_dim=size, v_head_dim=size)
    block = Block(
        hidden_size=hidden,
        weights=(
            Weight("mlp.bias", (hidden,), Role.BIAS),
            Weight("mlp.input_linear", (count, 2 * ffn, hidden), Role.EXPERT),
            Weight("mlp.output_linear", (count, hidden, ffn), Role.EXPERT),
            *linear("mlp.router", count, hidden),
            Weight("attention.bias", (hidden,), Role.BIAS),
            Weight("attention.input_linear", (count, width, hidden), Role.EXPERT),
            Weight("attention.output_linear", (count, hidden, width), Role.EXPERT),
            *linear("attention.router", count, hidden),
            *linear("kv_proj", 2 * width, hidden),
            *norms(("input_layernorm", "post_attention_layernorm"), hidden),
        ),
        attention=attention,
        moe=Moe(num_experts=count, experts_per_token=top_k, expert_ffn_hidden_size=ffn),
        dropout=dropping(f, "attention_dropout"),
        class_name="JetMoeDecoderLayer",
    )
    outline = Outline(
        prefix="JetMoe",
        hidden_size=hidden,
        vocab_size=f.required("vocab_size", high=MAX_VOCAB),
        final=norm("norm", hidden),
    )
    return decoder(f, outline, (Stack(block=block, count=f.required("num_hidden_layers", high=MAX_LAYERS)),))
