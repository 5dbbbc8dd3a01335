"""Speech: Qwen2-Audio (a Whisper encoder before a language model), wav2vec 2.0 and HuBERT.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Role, Stack, Weight
from app.domain.model.weights import conv, linear, norm
from app.ingest.hf_config.classic import dropping, projections
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_WIDTH, Fields
from app.ingest.hf_config.outline import class_name_of
from app.ingest.hf_config.registry import SECTIONS, family
from app.ingest.hf_config.seq2seq import side_stack
from app.ingest.hf_config.vision import Tower, VitSizes
from app.ingest.hf_config.vlm import joined, text_model

SECTIONS.add("qwen2_audio_encoder")
_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


@family("qwen2_audio", classes=("Qwen2AudioForConditionalGeneration",))
def qwen2_audio(f: Fields) -> Architecture:
    """Qwen2-Audio: Whisper's encoder, one linear projector, Qwen2."""
    section = f.needed_section("text_config", model_type="qwen2")
    text = text_model(f, section, tied=section.flag("tie_word_embeddings"))
    audio = f.needed_section("audio_config").retyped("qwen2_audio_encoder")
    width = audio.required("d_model", high=MAX_WIDTH)
    frames = audio.integer("max_source_positions", default=1500)
    mels = audio.integer("num_mel_bins", default=128, high=MAX_WIDTH)
    stack = side_stack(audio, "Qwen2Audio", "encoder", key_bias=False, tokens=frames)
    tower = Tower(
        stacks=(replace(stack, part="vision"),),
        weights=(
            *conv("conv1", (width, mels, 3), bias=True),
            *conv("conv2", (width, width, 3), bias=True),
            Weight("embed_positions", (frames, width), Role.OTHER),
            *norm("layer_norm", width, bias=True),
        ),
        hidden_size=width,
    )
    projector = linear("projector.linear", text.hidden_size, width, bias=True)
    return joined(f, text, tower, projector, "Qwen2Audio")


@family("wav2vec2", "hubert", classes=("Wav2Vec2ForCTC",))
def wav2vec2(f: Fields) -> Architecture:
    """wav2vec 2.0 and HuBERT: strided convolutions over the waveform, convolutional positions, a transformer encoder."""
    prefix = "Wav2Vec2" if f.model_type == "wav2vec2" else "Hubert"
    name = class_name_of(f) or f"{prefix}ForCTC"
    if name not in (f"{prefix}ForCTC", f"{prefix}Model") or f.flag("add_adapter"):
        raise f.unsupported("architectures", f"{name} or its adapter is not a head this family is read with")
    sizes = VitSizes.read(f)
    hidden = sizes.hidden_size
    block = sizes.block(
        f"{prefix}EncoderLayer" + ("StableLayerNorm" if f.flag("do_stable_layer_norm") else ""),
        projections(hidden, sizes.attention, names=_NAMES, bias=(True,) * 4),
        ("layer_norm", "final_layer_norm"),
        mlp_names=("intermediate_dense", "output_dense"),
        dropout=dropping(f, "hidden_dropout", "attention_dropout", "activation_dropout"),
    )
    vocab = f.required("vocab_size") if name.endswith("ForCTC") else 0
    head = (Weight("lm_head", (vocab, hidden), Role.HEAD), Weight("lm_head.bias", (vocab,), Role.BIAS)) if vocab else ()
    return Architecture(
        name="",
        family=f.model_type,
        kind="encoder",
        hidden_size=hidden,
        vocab_size=vocab,
        tied_embeddings=False,
        stacks=(Stack(block=block, count=sizes.num_layers),),
        weights=(*_waveform(f, hidden), *norm("encoder.layer_norm", hidden, bias=True), *head),
        model_class=name,
    )


def _waveform(f: Fields, hidden: int) -> tuple[Weight, ...]:
    dims, kernels = f.integers("conv_dim", low=1) or (), f.integers("conv_kernel", low=1) or ()
    if not dims or len(dims) != len(kernels) or len(dims) > MAX_LAYERS:
        raise f.invalid("conv_dim", f"{len(dims)} widths for {len(kernels)} kernels")
    bias, layered = f.flag("conv_bias"), f.text("feat_extract_norm", default="group") == "layer"
    found: tuple[Weight, ...] = ()
    for i, (width, kernel) in enumerate(zip(dims, kernels, strict=True)):
        found += conv(f"conv_layers.{i}", (width, dims[i - 1] if i else 1, kernel), bias=bias)
        if layered or i == 0:
            found += norm(f"conv_layers.{i}.layer_norm", width, bias=True)
    taps, groups = (
        f.integer("num_conv_pos_embeddings", default=128),
        f.integer("num_conv_pos_embedding_groups", default=16),
    )
    masks = f.number("mask_time_prob") > 0 or f.number("mask_feature_prob") > 0
    normed = f.model_type == "wav2vec2" or f.flag("feat_proj_layer_norm", default=True)
    return (
        *found,
        *((Weight("masked_spec_embed", (hidden,), Role.OTHER),) if masks else ()),
        *(norm("feature_projection.layer_norm", dims[-1], bias=True) if normed else ()),
        *linear("feature_projection", hidden, dims[-1], bias=True),
        Weight("pos_conv_embed.scale", (1, 1, taps), Role.OTHER),
        *conv("pos_conv_embed", (hidden, max(hidden // groups, 1), taps), bias=True),
    )
