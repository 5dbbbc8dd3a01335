"""What memory and FLOPs need beside the count: windows, directions, widths, names, and what follows from the head."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import UnsupportedModelError
from app.domain.model.architecture import Architecture, Role, Stack
from app.domain.model.parameters import counted_params
from app.ingest.hf_config import architecture_from_config

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def read(model_type: str, **fields: Any) -> Architecture:
    return architecture_from_config({"model_type": model_type, **SIZES, **fields})


def windows_of(model: Architecture) -> dict[int | None, int]:
    """Layers of the main sequence by attention window."""
    found: dict[int | None, int] = {}
    for stack in model.stacks:
        if stack.part == "main" and stack.block.attention:
            window = stack.block.attention.window
            found[window] = found.get(window, 0) + stack.count
    return found


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {}, {None: 12}),
        ("mistral", {"sliding_window": 4096}, {4096: 12}),
        ("mistral", {"sliding_window": None}, {None: 12}),
        ("mistral", {}, {4096: 12}),  # the class slides where the config does not say
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, {None: 12}),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 8}, {None: 8, 4096: 4}),
        ("gemma2", {"head_dim": 16, "sliding_window": 4096}, {4096: 6, None: 6}),
        ("gemma3_text", {"head_dim": 16, "sliding_window": 512}, {512: 10, None: 2}),
        ("gemma3_text", {"head_dim": 16, "sliding_window": 512, "sliding_window_pattern": 4}, {512: 9, None: 3}),
        ("cohere2", {"sliding_window": 4096}, {4096: 9, None: 3}),
        ("gpt_oss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}, {128: 6, None: 6}),
        ("llama4_text", {"intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1}, {8192: 9, None: 3}),
        ("qwen3", {"layer_types": ["full_attention"] * 12, "use_sliding_window": True}, {None: 12}),
        ("modernbert", {"local_attention": 128}, {None: 4, 128: 8}),
    ],
)  # fmt: skip
def test_windows_follow_the_family(model_type: str, fields: dict[str, Any], expected: dict[int | None, int]) -> None:
    """Each layer slides or not as the family's rule says."""
    assert windows_of(read(model_type, **fields)) == expected


def test_gpt_neo_alternates_by_its_nested_list() -> None:
    """attention_types is unrolled layer by layer."""
    model = architecture_from_config(
        {
            "model_type": "gpt_neo",
            "hidden_size": 64,
            "num_layers": 4,
            "num_heads": 4,
            "vocab_size": 100,
            "max_position_embeddings": 32,
            "window_size": 8,
            "attention_types": [[["global", "local"], 2]],
        }
    )
    assert windows_of(model) == {None: 2, 8: 2}


@pytest.mark.parametrize(("model_type", "causal"), [("llama", True), ("bert", False), ("eurobert", False)])
def test_encoders_see_both_ways(model_type: str, causal: bool) -> None:
    """Causality is the family's."""
    attention = read(model_type, max_position_embeddings=32).main_block.attention
    assert attention is not None
    assert attention.causal is causal


@pytest.mark.parametrize(
    ("model_type", "fields", "dropout"),
    [
        ("llama", {}, False),
        ("llama", {"attention_dropout": 0.1}, True),
        ("bert", {"max_position_embeddings": 32}, True),
        ("bert", {"max_position_embeddings": 32, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0.0}, False),
        ("gpt2", {"n_positions": 32}, True),
        ("gpt_neox", {}, False),
    ],
)
def test_dropout_follows_the_rates(model_type: str, fields: dict[str, Any], dropout: bool) -> None:
    """A block drops out where one of its rates is above zero, the class default included."""
    assert read(model_type, **fields).main_block.dropout is dropout


def test_dense_and_sparse_layers_are_separate_stacks() -> None:
    """A model with first dense layers lists them first, with their own width."""
    model = read(
        "glm4_moe", head_dim=16, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=24,
        first_k_dense_replace=3,
    )  # fmt: skip
    dense, sparse = model.stacks
    assert (dense.count, sparse.count) == (3, 9)
    assert dense.block.mlp is not None and dense.block.mlp.ffn_hidden_size == 96
    assert sparse.block.moe is not None and sparse.block.moe.shared_ffn_hidden_size == 24
    assert model.main_block is sparse.block


def test_latent_attention_says_its_widths() -> None:
    """MLA: full head sizes for the score work, the joint low rank for the cache."""
    model = read(
        "deepseek_v3", kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, q_lora_rank=None,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=24,
    )  # fmt: skip
    attention = model.main_block.attention
    assert attention is not None
    assert (attention.kind, attention.head_dim, attention.v_head_dim, attention.latent_dim) == ("latent", 24, 12, 32)


def test_an_encoder_decoder_has_both_parts() -> None:
    """T5: the encoder's stack works on the other sequence, the decoder attends to it."""
    model = architecture_from_config(
        {"model_type": "t5", "d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 3, "num_heads": 4, "vocab_size": 100}
    )
    parts = {stack.part: stack for stack in model.stacks}
    assert parts["encoder"].block.cross_attention is None
    assert parts["main"].block.cross_attention is not None
    assert model.num_layers == 3


def test_a_shared_layer_runs_more_often_than_it_is_owned() -> None:
    """ALBERT: weights of one layer, compute of all."""
    model = read("albert", embedding_size=32, max_position_embeddings=32)
    assert (model.stacks[0].count, model.stacks[0].owned) == (12, 1)


def test_a_vision_tower_has_its_own_tokens() -> None:
    """Patches and the class token of the tower, beside a text stack that follows the request."""
    model = architecture_from_config(
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", **SIZES},
            "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
        }
    )
    towers = [stack for stack in model.stacks if stack.part == "vision"]
    assert [stack.tokens for stack in towers] == [577]
    assert model.kind == "multimodal"
    assert model.main_block.class_name == "LlamaDecoderLayer"


@pytest.mark.parametrize(
    ("model_type", "fields", "names"),
    [
        ("llama", {}, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("phi3", {}, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
        ("gpt_neox", {}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
        ("gpt2", {"n_positions": 32}, {"c_attn", "c_proj", "c_fc"}),
        ("modernbert", {}, {"Wqkv", "Wo", "Wi"}),
    ],
)
def test_matrices_go_by_the_names_adapters_target(model_type: str, fields: dict[str, Any], names: set[str]) -> None:
    """The last component of a matrix's name is the module's name in the library."""
    block = read(model_type, **fields).main_block
    assert {w.name.split(".")[-1] for w in block.weights if w.role is Role.LINEAR} == names


def test_the_head_follows_the_named_class() -> None:
    """A base model has no head and no vocabulary; a classifier has one row a label."""
    lm = read("llama", architectures=["LlamaForCausalLM"])
    base = read("llama", architectures=["LlamaModel"])
    labels = read("llama", architectures=["LlamaForSequenceClassification"], num_labels=7)
    assert counted_params(lm) - counted_params(base) == 64 * 100
    assert counted_params(labels) - counted_params(base) == 64 * 7
    assert (lm.vocab_size, base.vocab_size, labels.vocab_size) == (100, 0, 0)


@pytest.mark.parametrize("name", ["LlamaForRewardModel", "LlamaForMaskedLM", "LlamaForTimeSeries"])
def test_a_head_nobody_knows_is_refused(name: str) -> None:
    """A class with another head is never counted as if it had this one."""
    with pytest.raises(UnsupportedModelError, match="architectures"):
        read("llama", architectures=[name])


def test_quantization_does_not_change_the_count() -> None:
    """A quantised checkpoint stores fewer elements; the model still has as many parameters."""
    packed = read("llama", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert counted_params(packed) == counted_params(read("llama"))


def test_what_a_class_default_decides_is_said() -> None:
    """A multimodal class that ties although its language model would not says so."""
    model = architecture_from_config(
        {
            "model_type": "mistral3",
            "text_config": {"model_type": "mistral", **SIZES},
            "vision_config": {"model_type": "pixtral"},
        }
    )
    assert model.tied_embeddings
    assert any("tie_word_embeddings" in said for said in model.inferred)


def test_modulations_of_a_diffusion_model_are_not_work_for_each_token() -> None:
    """What runs once a sample counts as parameters only."""
    model = architecture_from_config(
        {
            "_class_name": "FluxTransformer2DModel",
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 1,
            "num_single_layers": 2,
            "in_channels": 4,
            "joint_attention_dim": 24,
            "pooled_projection_dim": 20,
        }
    )
    double: Stack = model.stacks[0]
    assert {w.role for w in double.block.weights if w.name in ("norm1.linear", "norm1_context.linear")} == {Role.OTHER}
    assert double.block.attention is not None and not double.block.attention.causal
