"""Llama 4, text and multimodal: experts in every n-th layer, chunked attention, a pixel-shuffled tower.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Role, Stack, Weight
from app.domain.model.weights import linear, norms
from app.ingest.hf_config import windows
from app.ingest.hf_config.classic import projections
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import DecoderRules, MoeRules, build
from app.ingest.hf_config.vision import Tower, VitSizes, patches, read_tower, sides, tower
from app.ingest.hf_config.vlm import joined, text_model


def _sparse(f: Fields, num_layers: int) -> tuple[bool, ...]:
    listed = f.integers("moe_layers")
    if listed is not None:
        return tuple(i in listed for i in range(num_layers))
    step = f.integer("interleave_moe_layer_step", default=1)
    return tuple((i + 1) % step == 0 for i in range(num_layers))


def _chunks(f: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Layers with rotary positions attend within chunks; the others see everything."""
    found = windows.typed(f, num_layers)
    if found is not None:
        return found
    rotary = f.integers("no_rope_layers")
    step = f.integer("no_rope_layer_interval", default=4)
    keeps = rotary if rotary else tuple(int((i + 1) % step != 0) for i in range(num_layers))
    if len(keeps) != num_layers:
        raise f.invalid("no_rope_layers", f"{len(keeps)} entries for {num_layers} layers")
    chunk = f.optional("attention_chunk_size")
    return tuple(chunk if keep else None for keep in keeps)


_TEXT = DecoderRules(
    prefix="Llama4",
    layer="Llama4TextDecoderLayer",
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    windows=_chunks,
    ffn=lambda f: f.required("intermediate_size_mlp"),
    moe=MoeRules(
        count=("num_local_experts",),
        width=("intermediate_size",),
        shared=lambda f: f.required("intermediate_size"),
        sparse=_sparse,
        transposed=True,
    ),
)


@family("llama4_text", classes=("Llama4ForCausalLM",))
def llama4_text(f: Fields) -> Architecture:
    """Llama 4's language model; its query/key norm has no parameters."""
    return build(f, _TEXT)


@tower("llama4_vision_model")
def llama4_vision(f: Fields) -> Tower:
    """Llama 4's tower: unfolded patches, class token, pixel shuffle into a two-layer adapter."""
    sizes = VitSizes.read(f)
    hidden, tokens = sizes.hidden_size, patches(f) + 1
    patch = sides(f, "patch_size")
    attention = projections(hidden, sizes.attention, names=("q_proj", "k_proj", "v_proj", "o_proj"), bias=(True,) * 4)
    block = sizes.block("Llama4VisionEncoderLayer", attention, ("input_layernorm", "post_attention_layernorm"))
    out = f.integer("projector_output_dim")
    return Tower(
        stacks=(Stack(block=block, count=sizes.num_layers, part="vision", tokens=tokens),),
        weights=(
            Weight("class_embedding", (hidden,), Role.OTHER),
            Weight("positional_embedding_vlm", (tokens, hidden), Role.OTHER),
            *linear("patch_embedding", hidden, f.integer("num_channels", default=3) * patch[0] * patch[1]),
            *norms(("layernorm_pre", "layernorm_post"), hidden, bias=True),
            *linear("vision_adapter.fc1", f.integer("projector_input_dim"), sizes.ffn),
            *linear("vision_adapter.fc2", out, out),
        ),
        hidden_size=f.integer("vision_output_dim"),
    )


@family("llama4", classes=("Llama4ForConditionalGeneration",))
def llama4(f: Fields) -> Architecture:
    """Llama 4 with its tower; the head is tied by the text config alone."""
    section = f.needed_section("text_config").retyped("llama4_text")
    vision = read_tower(f.needed_section("vision_config").retyped("llama4_vision_model"))
    text = text_model(f, section, tied=section.flag("tie_word_embeddings"))
    projector = linear("multi_modal_projector.linear_1", text.hidden_size, vision.hidden_size)
    return replace(joined(f, text, vision, projector, "Llama4"), family="llama4")
