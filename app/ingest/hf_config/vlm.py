"""Language models with a vision tower and a projector: LLaVA, Pixtral, PaliGemma, Gemma 3, Idefics3, InternVL.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

import math
from dataclasses import replace

from app.domain.model.architecture import Architecture, Role, Weight
from app.domain.model.weights import linear, norm
from app.ingest.hf_config.fields import Fields
from app.ingest.hf_config.outline import class_name_of, suffix_of
from app.ingest.hf_config.registry import family, read, resolve
from app.ingest.hf_config.vision import Tower, read_tower

_SUFFIX = "ForConditionalGeneration"


def text_model(f: Fields, section: Fields, *, tied: bool) -> Architecture:
    """The language model of a multimodal config, with the head the outer class asks for."""
    inner = section.retyped(section.model_type or resolve(section))
    head = "Model" if suffix_of(f, _SUFFIX) == "Model" else suffix_of(f, _SUFFIX)
    return read(inner.replaced(architectures=[head], tie_word_embeddings=tied))


def joined(f: Fields, text: Architecture, tower: Tower, projector: tuple[Weight, ...], prefix: str) -> Architecture:
    """Language model, tower and projector as one architecture."""
    base = suffix_of(f, _SUFFIX) == "Model"
    return replace(
        text,
        family=f.model_type,
        kind="multimodal",
        stacks=text.stacks + tower.stacks,
        weights=text.weights + tower.weights + projector,
        model_class=class_name_of(f) if base else prefix + suffix_of(f, _SUFFIX),
    )


def either_tied(f: Fields, section: Fields) -> bool:
    """Families whose configs once kept the tie flag inside text_config: either place ties."""
    return f.flag("tie_word_embeddings") or section.flag("tie_word_embeddings")


def outer_tied(f: Fields, section: Fields, text: Architecture) -> Architecture:
    """Say so where the class ties by default although the language model on its own would not."""
    if f.has("tie_word_embeddings") or section.flag("tie_word_embeddings") or not text.tied_embeddings:
        return text
    said = "tie_word_embeddings is not given; the class default ties the output head to the embedding table"
    return replace(text, inferred=(*text.inferred, said))


def _two_layers(text_size: int, vision_size: int, *, bias: bool) -> tuple[Weight, ...]:
    return (
        *linear("projector.linear_1", text_size, vision_size, bias=bias),
        *linear("projector.linear_2", text_size, text_size, bias=bias),
    )


def _feature_layers(f: Fields) -> int:
    listed = f.raw("vision_feature_layer")
    return max(len(listed), 1) if isinstance(listed, list) else 1


_LLAVAS = {
    "llava": "Llava",
    "llava_next": "LlavaNext",
    "llava_onevision": "LlavaOnevision",
    "llava_next_video": "LlavaNextVideo",
}


@family(*_LLAVAS, classes=("LlavaForConditionalGeneration",))
def llava(f: Fields) -> Architecture:
    """LLaVA and Pixtral: any tower, a two-layer projector; LLaVA-NeXT and OneVision add one line-break vector."""
    if f.has("mm_vision_tower"):  # the first format kept model_type llava for flat language fields
        return original_llava(f.as_family("llava_llama"))
    default_tower = "siglip_vision_model" if f.model_type == "llava_onevision" else "clip_vision_model"
    default_text = "qwen2" if f.model_type == "llava_onevision" else "llama"
    section = f.needed_section("text_config", model_type=default_text)
    tower = read_tower(f.needed_section("vision_config", model_type=default_tower))
    tied = f.flag("tie_word_embeddings") if f.model_type == "llava_next" else either_tied(f, section)
    text = text_model(f, section, tied=tied)
    projector = _two_layers(
        text.hidden_size,
        tower.hidden_size * _feature_layers(f),
        bias=f.flag("multimodal_projector_bias", default=True),
    )
    if f.model_type != "llava":
        projector += (Weight("image_newline", (text.hidden_size,), Role.OTHER),)
    return joined(f, text, tower, projector, _LLAVAS[f.model_type])


@family("paligemma", classes=("PaliGemmaForConditionalGeneration",))
def paligemma(f: Fields) -> Architecture:
    """PaliGemma 1 and 2: SigLIP, one linear projector, Gemma."""
    section = f.needed_section("text_config", model_type="gemma")
    tower = read_tower(f.needed_section("vision_config", model_type="siglip_vision_model"))
    text = text_model(f, section, tied=f.flag("tie_word_embeddings", default=True))
    vision = f.needed_section("vision_config", model_type="siglip_vision_model")
    width = vision.integer("projection_dim", default=f.integer("projection_dim", default=text.hidden_size))
    return joined(f, text, tower, linear("projector", width, tower.hidden_size, bias=True), "PaliGemma")


@family("gemma3", "shieldgemma2", classes=("Gemma3ForConditionalGeneration",))
def gemma3(f: Fields) -> Architecture:
    """Gemma 3: SigLIP, one projection matrix and a norm; the text sizes may all be class defaults."""
    section = f.needed_section("text_config", model_type="gemma3_text")
    tower = read_tower(f.needed_section("vision_config", model_type="siglip_vision_model"))
    text = text_model(f, section, tied=f.flag("tie_word_embeddings", default=True))
    projector = (
        Weight("projector.mm_input_projection_weight", (tower.hidden_size, text.hidden_size)),
        *norm("projector.mm_soft_emb_norm", tower.hidden_size),
    )
    return joined(f, text, tower, projector, "Gemma3")


@family("mistral3", classes=("Mistral3ForConditionalGeneration",))
def mistral3(f: Fields) -> Architecture:
    """Mistral Small 3.1: Pixtral's tower, patches merged before a two-layer projector."""
    section = f.needed_section("text_config", model_type="mistral")
    tower = read_tower(f.needed_section("vision_config", model_type="pixtral"))
    text = text_model(f, section, tied=f.flag("tie_word_embeddings", default=True))
    merge = f.integer("spatial_merge_size", default=2, high=1000)
    bias = f.flag("multimodal_projector_bias")
    projector = (
        *norm("projector.norm", tower.hidden_size),
        *linear("projector.merging_layer", tower.hidden_size, tower.hidden_size * merge**2),
        *_two_layers(text.hidden_size, tower.hidden_size * _feature_layers(f), bias=bias),
    )
    return joined(f, outer_tied(f, section, text), tower, projector, "Mistral3")


@family("idefics3", "smolvlm", classes=("Idefics3ForConditionalGeneration",))
def idefics3(f: Fields) -> Architecture:
    """Idefics3 and SmolVLM: pixel shuffle and one matrix."""
    prefix = "Idefics3" if f.model_type == "idefics3" else "SmolVLM"
    section = f.needed_section("text_config", model_type="llama")
    vision = f.needed_section("vision_config", model_type=f"{f.model_type}_vision")
    tower = read_tower(vision.retyped(f"{f.model_type}_vision"))
    text = text_model(f, section, tied=f.flag("tie_word_embeddings"))
    scale = f.integer("scale_factor", default=2, high=1000)
    projector = linear("projector.proj", text.hidden_size, tower.hidden_size * scale**2)
    return joined(f, text, tower, projector, prefix)


@family("internvl", classes=("InternVLForConditionalGeneration",))
def internvl(f: Fields) -> Architecture:
    """InternVL 2.5 to 3.5 in the library's format: InternViT, pixel shuffle, a normed two-layer projector."""
    section = f.needed_section("text_config", model_type="qwen2")
    tower = read_tower(f.needed_section("vision_config", model_type="internvl_vision"))
    text = text_model(f, section, tied=f.flag("tie_word_embeddings", default=True))
    ratio = f.number("downsample_ratio", default=0.5, high=1)
    if not ratio:
        raise f.invalid("downsample_ratio", "has to be above 0")
    width = tower.hidden_size * int(math.pow(int(1 / ratio), 2))
    projector = norm("projector.layer_norm", width, bias=True) + _two_layers(text.hidden_size, width, bias=True)
    return joined(f, outer_tied(f, section, text), tower, projector, "InternVL")


@family("llava_llama", "llava_qwen", "llava_mistral", classes=("LlavaLlamaForCausalLM",))
def original_llava(f: Fields) -> Architecture:
    """LLaVA 1.5 as first published: flat language fields, the tower only a name, an MLP projector of given depth.

    Source: the towers named are the two published CLIP models; their sizes are those of their own config.json.
    """
    family_name = {"llava_llama": "llama", "llava_qwen": "qwen2", "llava_mistral": "mistral"}[f.model_type]
    text = read(f.retyped(family_name).replaced(architectures=["ForCausalLM"]))
    tower = _named_tower(f)
    kind = f.text("mm_projector_type", default="linear")
    depth = _projector_depth(f, kind)
    projector = linear("projector.0", text.hidden_size, f.integer("mm_hidden_size", default=tower.hidden_size), bias=True)
    for i in range(1, depth):
        projector += linear(f"projector.{i}", text.hidden_size, text.hidden_size, bias=True)
    if "unpad" in f.text("mm_patch_merge_type", default="flat"):
        projector += (Weight("image_newline", (text.hidden_size,), Role.OTHER),)
    return replace(joined(f, text, tower, projector, ""), model_class=class_name_of(f))


def _projector_depth(f: Fields, kind: str) -> int:
    if kind == "linear":
        return 1
    depth = kind.removeprefix("mlp").removesuffix("x_gelu")
    if kind == f"mlp{depth}x_gelu" and depth.isascii() and depth.isdigit() and 0 < int(depth[:3]) <= 100:
        return int(depth[:3])
    raise f.unsupported("mm_projector_type", f"{kind[:40]!r} is not a projector that can be counted exactly")


_NAMED_TOWERS = {
    "clip-vit-large-patch14-336": ("clip_vision_model", 1024, 4096, 24, 16, 336, 14),
    "clip-vit-large-patch14": ("clip_vision_model", 1024, 4096, 24, 16, 224, 14),
    "siglip-so400m-patch14-384": ("siglip_vision_model", 1152, 4304, 27, 16, 384, 14),
}


def _named_tower(f: Fields) -> Tower:
    name = f.text("mm_vision_tower", "vision_tower")
    sizes = _NAMED_TOWERS.get(name.rsplit("/", 1)[-1])
    if sizes is None:
        known = ", ".join(_NAMED_TOWERS)
        raise f.unsupported("mm_vision_tower", f"{name[:80]!r} is only a name; known towers are {known}")
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
    values = dict(zip(keys, sizes[1:], strict=True))
    return read_tower(Fields({**values, "vision_use_head": False}, loc=f.loc, model_type=sizes[0], nested=True))


@family("aya_vision", classes=("AyaVisionForConditionalGeneration",))
def aya_vision(f: Fields) -> Architecture:
    """Aya Vision: SigLIP, pixel shuffle, a gated projector, Cohere 2."""
    section = f.needed_section("text_config", model_type="cohere2")
    tower = read_tower(f.needed_section("vision_config", model_type="siglip_vision_model"))
    text = text_model(f, section, tied=f.flag("tie_word_embeddings", default=True))
    merged = tower.hidden_size * f.integer("downsample_factor", default=2, high=1000) ** 2
    inner = f.integer("alignment_intermediate_size", default=text.hidden_size)
    projector = (
        *norm("projector.layernorm", merged, bias=True),
        *linear("projector.linear_1", inner, merged, bias=True),
        *linear("projector.linear_2", text.hidden_size, inner // 2, bias=True),
    )
    return joined(f, text, tower, projector, "AyaVision")
