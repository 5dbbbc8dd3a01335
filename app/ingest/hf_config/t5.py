"""T5 and its relatives: v1.0, v1.1 and Flan, mT5, UMT5, LongT5, with or without the decoder.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import embedding, linear, norm, norms
from app.ingest.hf_config.classic import projections
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import class_name_of, no_such_head, task_of
from app.ingest.hf_config.registry import family

_PREFIXES = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5", "longt5": "LongT5"}
_CROSS = ("EncDecAttention.q", "EncDecAttention.k", "EncDecAttention.v", "EncDecAttention.o")


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Sizes:
    """The widths all T5 layers share; ``bias_each`` puts a table of position biases into every layer (UMT5)."""

    hidden_size: int
    attention: Attention
    ffn: int
    gated: bool
    dropout: bool
    buckets: int
    bias_each: bool
    global_tokens: bool
    class_name: str

    def bias_table(self, name: str = "relative_attention_bias") -> Weight:
        """One table of relative position biases."""
        return Weight(name, (self.buckets, self.attention.num_heads), Role.OTHER)

    def block(self, *, decodes: bool) -> Block:
        """Equation: encoder 4·h·I + m·h·f + 2·h; decoder 8·h·I + m·h·f + 3·h with I = heads × head_dim, m = 2 or 3."""
        hidden = self.hidden_size
        inputs = ("wi_0", "wi_1") if self.gated else ("wi",)
        attention = replace(self.attention, causal=decodes)
        names = ("self_attn_layer_norm", *(("cross_attn_layer_norm",) if decodes else ()), "ff_layer_norm")
        return Block(
            hidden_size=hidden,
            weights=(
                *projections(hidden, attention, names=("q", "k", "v", "o"), bias=(False,) * 4),
                *(projections(hidden, attention, names=_CROSS, bias=(False,) * 4) if decodes else ()),
                *(weight for name in inputs for weight in linear(name, self.ffn, hidden)),
                *linear("wo", hidden, self.ffn),
                *norms(names, hidden),
                *((self.bias_table(),) if self.bias_each else ()),
                *(norm("global_input_layer_norm", hidden) if self.global_tokens and not decodes else ()),
            ),
            attention=attention,
            cross_attention=replace(self.attention, causal=False) if decodes else None,
            mlp=Mlp(ffn_hidden_size=self.ffn, gated=self.gated),
            num_norms=len(names),
            dropout=self.dropout,
            class_name=self.class_name,
        )


def read_sizes(f: Fields, prefix: str) -> T5Sizes:
    """The sizes of one config."""
    heads = f.required("num_heads", high=MAX_WIDTH)
    size = f.required("d_kv", high=MAX_WIDTH)
    return T5Sizes(
        hidden_size=f.required("d_model", high=MAX_WIDTH),
        attention=Attention(num_heads=heads, num_kv_heads=heads, head_dim=size, v_head_dim=size, causal=False),
        ffn=f.required("d_ff"),
        gated=f.text("feed_forward_proj", default="relu").startswith("gated-") or f.flag("is_gated_act"),
        dropout=f.number("dropout_rate") > 0,
        buckets=f.integer("relative_attention_num_buckets", default=32),
        bias_each=f.model_type == "umt5",
        global_tokens=f.model_type == "longt5" and f.text("encoder_attention_type") == "transient-global",
        class_name=f"{prefix}Block",
    )


@family(*_PREFIXES, classes=("T5ForConditionalGeneration",))
def t5(f: Fields) -> Architecture:
    """T5: relative position tables in the first layer of each side; the head is tied unless the config says false.

    The library builds it tied whatever the config says and unties on loading a checkpoint that stores a head;
    what is trained and stored is the config's, so that is what is counted.
    """
    prefix = _PREFIXES[f.model_type]
    name = class_name_of(f)
    encoder_only = name.endswith("EncoderModel")
    task = task_of(f)
    if task not in ("lm", "base"):
        raise no_such_head(f)
    rules = read_sizes(f, prefix)
    vocab = f.required("vocab_size", high=MAX_VOCAB)
    layers = f.required("num_layers", high=MAX_LAYERS)
    lm, tied = task == "lm", f.flag("tie_word_embeddings", default=True)
    encoder = Stack(block=rules.block(decodes=False), count=layers, part="main" if encoder_only else "encoder")
    stacks: tuple[Stack, ...] = (encoder,)
    if not encoder_only:
        below = f.optional("num_decoder_layers", high=MAX_LAYERS) or layers
        stacks += (Stack(block=rules.block(decodes=True), count=below),)
    side = (*norm("final_layer_norm", rules.hidden_size), *(() if rules.bias_each else (rules.bias_table(),)))
    shared_table = (rules.bias_table("global_relative_attention_bias"),) if rules.global_tokens else ()
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder" if encoder_only else "encoder_decoder",
        hidden_size=rules.hidden_size,
        vocab_size=vocab if lm else 0,
        tied_embeddings=lm and tied,
        stacks=stacks,
        weights=(
            embedding("shared", vocab, rules.hidden_size),
            *(side * len(stacks)),
            *shared_table,
            *(() if tied or not lm else (Weight("lm_head", (vocab, rules.hidden_size), Role.HEAD),)),
        ),
        max_seq_len=f.optional("n_positions"),
        model_class=name if not lm and name else f"{prefix}ForConditionalGeneration",
    )
