"""Dense decoders that add something of their own to the Llama kind: extra norms, parallel branches, activations.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Block, Role, Weight
from app.domain.model.weights import norm
from app.ingest.hf_config import windows
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import DecoderRules, build, layer

_BIAS = "attention_bias"
_ONE_NORM = ("input_layernorm",)


def _sub_norms(f: Fields, dims: Dims) -> tuple[Weight, ...]:
    return (*norm("attn_sub_norm", dims.hidden_size), *norm("ffn_sub_norm", f.required("intermediate_size")))


def _xielu(_f: Fields, _dims: Dims) -> tuple[Weight, ...]:
    return (Weight("act_fn.alpha_p", (1,), Role.OTHER), Weight("act_fn.alpha_n", (1,), Role.OTHER))


def _lambdas(_f: Fields, dims: Dims) -> tuple[Weight, ...]:
    return (Weight("lambda", (dims.head_dim,), Role.OTHER, 4),)


VARIANTS: dict[str, DecoderRules] = {
    "cohere": DecoderRules(
        prefix="Cohere",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="grid",
        qk_norm_if="use_qk_norm",
        norm="layer",
        norm_names=_ONE_NORM,
        parallel=True,
    ),
    "cohere2": DecoderRules(
        prefix="Cohere2",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        norm="layer",
        norm_names=_ONE_NORM,
        parallel=True,
        windows=windows.every(4, "sliding_window_pattern"),
    ),
    "apertus": DecoderRules(
        prefix="Apertus",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        qk_norm="head",
        gated=False,
        norm_names=("attention_layernorm", "feedforward_layernorm"),
        also=_xielu,
    ),
    "bitnet": DecoderRules(prefix="BitNet", qkv_bias=_BIAS, out_bias=_BIAS, also=_sub_norms),
    "diffllama": DecoderRules(prefix="DiffLlama", qkv_bias=_BIAS, out_bias=_BIAS, also=_lambdas),
    "nanochat": DecoderRules(prefix="NanoChat", qkv_bias=_BIAS, out_bias=_BIAS, gated=False, mlp_names=("fc1", "fc2"), norm="none"),
    "persimmon": DecoderRules(
        prefix="Persimmon",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        fused_qkv="query_key_value",
        out_name="dense",
        qk_norm="head",
        qk_norm_if="qk_layernorm",
        qk_norm_bias=True,
        gated=False,
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        norm="layer",
        norm_bias=True,
        dropout=("attention_dropout", "hidden_dropout"),
    ),
}

_STABLELM = DecoderRules(
    prefix="StableLm",
    qkv_bias="use_qkv_bias",
    qk_norm="each",
    qk_norm_if="qk_layernorm",
    norm="layer",
    norm_bias=True,
    dropout=("attention_dropout", "hidden_dropout"),
)
_STABLELM_PARALLEL = replace(_STABLELM, norm_names=_ONE_NORM, parallel=True)
_PHI = DecoderRules(
    prefix="Phi",
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    out_name="dense",
    qk_norm="head",
    qk_norm_if="qk_layernorm",
    qk_norm_bias=True,
    gated=False,
    mlp_names=("fc1", "fc2"),
    norm="layer",
    norm_bias=True,
    norm_names=_ONE_NORM,
    parallel=True,
    dropout=("attention_dropout", "resid_pdrop", "embd_pdrop"),
    head_bias=True,
)


def variant(f: Fields) -> Architecture:
    """A dense decoder described by a row of ``VARIANTS``."""
    return build(f, VARIANTS[f.model_type])


for _name, _rules in VARIANTS.items():
    family(_name, classes=(f"{_rules.prefix}ForCausalLM",))(variant)


@family("stablelm", "stablelm_epoch", classes=("StableLmForCausalLM",))
def stablelm(f: Fields) -> Architecture:
    """StableLM: use_parallel_residual drops the second norm."""
    f = f.retyped("stablelm")
    return build(f, _STABLELM_PARALLEL if f.flag("use_parallel_residual") else _STABLELM)


@family("phi", classes=("PhiForCausalLM",))
def phi(f: Fields) -> Architecture:
    """Phi-1.5 and Phi-2: biases everywhere, one norm for both branches."""
    return build(f, _PHI)


@family("gpt_neox", classes=("GPTNeoXForCausalLM",))
def gpt_neox(f: Fields) -> Architecture:
    """GPT-NeoX and Pythia: one q/k/v matrix, biases everywhere, two norms and parallel branches."""
    rules = DecoderRules(
        prefix="GPTNeoX",
        layer="GPTNeoXLayer",
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        mlp_bias=True,
        fused_qkv="query_key_value",
        out_name="dense",
        gated=False,
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        norm="layer",
        norm_bias=True,
        parallel=f.flag("use_parallel_residual"),
        dropout=("attention_dropout", "hidden_dropout"),
    )
    dims = Dims.read(f, grouped=False)
    outline = Outline(
        prefix="GPTNeoX",
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size,
        embed_name="embed_in",
        head_name="embed_out",
        final=norm("final_layer_norm", dims.hidden_size, bias=True),
    )

    def block(window: int | None) -> Block:
        return layer(f, rules, dims, window=window, sparse=False)

    return decoder(f, outline, group([(None,)] * dims.num_layers, block))
