"""OPT and its relatives with fairseq names: XGLM, BioGPT.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Role, Stack, Weight
from app.domain.model.weights import embedding, linear, norm
from app.ingest.hf_config.classic import Classic, dropping, projections
from app.ingest.hf_config.fields import MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder
from app.ingest.hf_config.registry import family

_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
_NORMS = ("self_attn_layer_norm", "final_layer_norm")
_MLP = ("fc1", "fc2")
_OFFSET = 2  # rows that fairseq's learned positions keep for padding


def _stacks(f: Fields, dims: Dims, class_name: str, ffn: int, *, bias: bool = True) -> tuple[Stack, ...]:
    return Classic(
        class_name=class_name,
        hidden_size=dims.hidden_size,
        attention_weights=projections(dims.hidden_size, dims.attention(), names=_NAMES, bias=(bias,) * 4),
        ffn=ffn,
        mlp_names=_MLP,
        norm_names=_NORMS,
        mlp_bias=bias,
        dropout=dropping(
            f, "dropout", "attention_dropout", "activation_dropout", "hidden_dropout_prob",
            "attention_probs_dropout_prob",
        ),
    ).stack(dims.attention(), dims.num_layers)  # fmt: skip


@family("opt", classes=("OPTForCausalLM",))
def opt(f: Fields) -> Architecture:
    """OPT: learned positions, tied; the 350M model embeds in 512 and projects in and out."""
    affine = f.flag("layer_norm_elementwise_affine", default=True)
    dims = Dims.read(f, grouped=False)
    hidden = dims.hidden_size
    width = f.optional("word_embed_proj_dim", high=MAX_WIDTH) if f.has("word_embed_proj_dim") else hidden
    width = width or hidden
    outside: tuple[Weight, ...] = (embedding("embed_positions", f.required("max_position_embeddings") + _OFFSET, hidden),)
    if width != hidden:
        outside += linear("project_out", width, hidden) + linear("project_in", hidden, width)
    before = f.flag("do_layer_norm_before", default=True) and not f.flag("_remove_final_layer_norm")
    outline = Outline(
        prefix="OPT",
        hidden_size=hidden,
        vocab_size=dims.vocab_size,
        embed_size=width,
        outside=outside,
        final=norm("final_layer_norm", hidden, bias=True) if before and affine else (),
    )
    stacks = _stacks(f, dims, "OPTDecoderLayer", f.required("ffn_dim"), bias=f.flag("enable_bias", default=True))
    return decoder(f, outline, stacks if affine else tuple(_without_norms(stack) for stack in stacks))


def _without_norms(stack: Stack) -> Stack:
    """Galactica: the norms are there but have no parameters."""
    kept = tuple(weight for weight in stack.block.weights if weight.role is not Role.NORM)
    return replace(stack, block=replace(stack.block, weights=kept))


@family("xglm", classes=("XGLMForCausalLM",))
def xglm(f: Fields) -> Architecture:
    """XGLM: sinusoidal positions without parameters, tied."""
    dims = Dims.read(f, grouped=False)
    outline = Outline(
        prefix="XGLM",
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size,
        final=norm("layer_norm", dims.hidden_size, bias=True),
    )
    return decoder(f, outline, _stacks(f, dims, "XGLMDecoderLayer", f.required("ffn_dim")))


@family("biogpt", classes=("BioGptForCausalLM",))
def biogpt(f: Fields) -> Architecture:
    """BioGPT: learned positions, tied."""
    dims = Dims.read(f, grouped=False)
    rows = f.required("max_position_embeddings") + _OFFSET
    outline = Outline(
        prefix="BioGpt",
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size,
        outside=(embedding("embed_positions", rows, dims.hidden_size),),
        final=norm("layer_norm", dims.hidden_size, bias=True),
        head_name="output_projection",
    )
    return decoder(f, outline, _stacks(f, dims, "BioGptDecoderLayer", f.required("intermediate_size")))
