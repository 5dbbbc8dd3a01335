"""Two-tower models: CLIP and SigLIP.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Role, Stack, Weight
from app.domain.model.weights import embedding, linear, norm
from app.ingest.hf_config.fields import MAX_VOCAB, Fields
from app.ingest.hf_config.outline import class_name_of, no_such_head
from app.ingest.hf_config.registry import SECTIONS, family
from app.ingest.hf_config.vision import Tower, VitSizes, clip_block, read_tower

SECTIONS.update({"clip_text_model", "siglip_text_model"})


def _text(f: Fields, class_name: str, *, causal: bool) -> Tower:
    sizes = VitSizes.read(f, causal=causal)
    hidden = sizes.hidden_size
    positions = f.required("max_position_embeddings")
    return Tower(
        stacks=(Stack(block=clip_block(f, sizes, class_name), count=sizes.num_layers, tokens=positions),),
        weights=(
            embedding("token_embedding", f.required("vocab_size", high=MAX_VOCAB), hidden),
            embedding("position_embedding", positions, hidden),
            *norm("final_layer_norm", hidden, bias=True),
        ),
        hidden_size=hidden,
    )


def _joined(f: Fields, text: Tower, vision: Tower, extra: tuple[Weight, ...], prefix: str) -> Architecture:
    name = class_name_of(f) or f"{prefix}Model"
    if name != f"{prefix}Model":
        raise no_such_head(f)
    return Architecture(
        name="",
        family=f.model_type,
        kind="multimodal",
        hidden_size=text.hidden_size,
        vocab_size=0,
        tied_embeddings=False,
        stacks=text.stacks + vision.stacks,
        weights=text.weights + vision.weights + extra,
        max_seq_len=text.stacks[0].tokens,
        model_class=name,
    )


@family("clip", classes=("CLIPModel",))
def clip(f: Fields) -> Architecture:
    """CLIP: a causal text tower and an image tower, one projection each, one temperature."""
    text = _text(f.needed_section("text_config").retyped("clip_text_model"), "CLIPEncoderLayer", causal=True)
    vision = read_tower(f.needed_section("vision_config").retyped("clip_vision_model"))
    out = f.integer("projection_dim", default=512)
    extra = (
        *linear("visual_projection", out, vision.hidden_size),
        *linear("text_projection", out, text.hidden_size),
        Weight("logit_scale", (), Role.OTHER),
    )
    return _joined(f, text, vision, extra, "CLIP")


@family("siglip", classes=("SiglipModel",))
def siglip(f: Fields) -> Architecture:
    """SigLIP: both towers see everything; a linear text head, a temperature and a bias."""
    section = f.needed_section("text_config").retyped("siglip_text_model")
    text = _text(section, "SiglipEncoderLayer", causal=False)
    vision = read_tower(f.needed_section("vision_config").retyped("siglip_vision_model"))
    out = section.optional("projection_size") or text.hidden_size
    extra = (
        *linear("text_model.head", out, text.hidden_size, bias=True),
        Weight("logit", (1,), Role.OTHER, 2),
    )
    return _joined(f, text, vision, extra, "Siglip")
