"""Idefics2: SigLIP, a gated projection, and a perceiver that resamples every image to a fixed number of tokens.

Source: the modelling file of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Stack, Weight
from app.domain.model.weights import gated_mlp, grouped_attention, norm, norms
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.registry import SECTIONS, family
from app.ingest.hf_config.vision import Tower, read_tower
from app.ingest.hf_config.vlm import joined, text_model

SECTIONS.add("idefics2_perceiver")


def _resampler(f: Fields, hidden: int) -> Tower:
    attention = Attention(
        num_heads=f.integer("resampler_n_heads", high=MAX_WIDTH),
        num_kv_heads=f.integer("num_key_value_heads", high=MAX_WIDTH),
        head_dim=f.integer("resampler_head_dim", high=MAX_WIDTH),
        v_head_dim=f.integer("resampler_head_dim", high=MAX_WIDTH),
        causal=False,
    )
    latents = f.integer("resampler_n_latents", default=64)
    names = ("input_latents_norm", "input_context_norm", "post_attention_layernorm")
    block = Block(
        hidden_size=hidden,
        weights=(
            *grouped_attention(hidden, attention),
            *gated_mlp(hidden, 4 * hidden),
            *norms(names, hidden),
        ),
        cross_attention=attention,
        mlp=Mlp(ffn_hidden_size=4 * hidden, gated=True),
        num_norms=3,
        class_name="Idefics2PerceiverLayer",
    )
    depth = f.integer("resampler_depth", default=3, high=MAX_LAYERS)
    return Tower(
        stacks=(Stack(block=block, count=depth, part="vision", tokens=latents),),
        weights=(Weight("latents", (latents, hidden), Role.OTHER), *norm("perceiver.norm", hidden)),
        hidden_size=hidden,
    )


@family("idefics2", classes=("Idefics2ForConditionalGeneration",))
def idefics2(f: Fields) -> Architecture:
    """Idefics2."""
    section = f.needed_section("text_config", model_type="mistral")
    text = text_model(f, section, tied=f.flag("tie_word_embeddings"))
    vision = read_tower(f.needed_section("vision_config").retyped("idefics2_vision"))
    hidden = text.hidden_size
    resampler = _resampler(f.needed_section("perceiver_config").retyped("idefics2_perceiver"), hidden)
    inner = section.retyped(section.model_type).required("intermediate_size")
    projection = (
        Weight("modality_projection.gate_proj", (inner, vision.hidden_size)),
        Weight("modality_projection.up_proj", (inner, vision.hidden_size)),
        Weight("modality_projection.down_proj", (hidden, inner)),
    )
    both = Tower(
        stacks=vision.stacks + resampler.stacks,
        weights=vision.weights + resampler.weights,
        hidden_size=hidden,
    )
    return joined(f, text, both, projection, "Idefics2")
