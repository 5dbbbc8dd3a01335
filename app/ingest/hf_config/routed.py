"""The module of transformers that holds a layer's router and experts: what ZeRO-3 must gather as one, since ranks route differently.

Source: the modelling files of transformers 5.24; tests/verify/test_leaf_modules.py finds each in a built model. The two exceptions to
"the block that routes": Gemma 4 has its experts in the layer itself, so their own module is named; JetMoe's attention also picks
experts, but is never called as a module, so that hooks on it would not run.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Block

MOE_CLASSES = {
    "AfmoeDecoderLayer": "AfmoeSparseMoeBlock",
    "DbrxBlock": "DbrxFFN",
    "DeepseekDecoderLayer": "DeepseekMoE",
    "DeepseekV2DecoderLayer": "DeepseekV2Moe",
    "DeepseekV3DecoderLayer": "DeepseekV3MoE",
    "DeepseekV32DecoderLayer": "DeepseekV32MoE",
    "Dots1DecoderLayer": "Dots1MoE",
    "Ernie4_5_MoeDecoderLayer": "Ernie4_5_MoeSparseMoeBlock",
    "ExaoneMoeDecoderLayer": "ExaoneMoeSparseMoEBlock",
    "FlexOlmoDecoderLayer": "FlexOlmoSparseMoeBlock",
    "Gemma4TextDecoderLayer": "Gemma4TextExperts",
    "Glm4MoeDecoderLayer": "Glm4MoeMoE",
    "Glm4MoeLiteDecoderLayer": "Glm4MoeLiteMoE",
    "GlmMoeDsaDecoderLayer": "GlmMoeDsaMoE",
    "GptOssDecoderLayer": "GptOssMLP",
    "GraniteMoeDecoderLayer": "GraniteMoeMoE",
    "GraniteMoeHybridDecoderLayer": "GraniteMoeHybridMoE",
    "GraniteMoeSharedDecoderLayer": "GraniteMoeSharedMoE",
    "HunYuanMoEV1DecoderLayer": "HunYuanMoEV1Moe",
    "JambaAttentionDecoderLayer": "JambaSparseMoeBlock",
    "JambaMambaDecoderLayer": "JambaSparseMoeBlock",
    "JetMoeDecoderLayer": "JetMoeMoE",
    "Lfm2MoeDecoderLayer": "Lfm2MoeSparseMoeBlock",
    "Llama4TextDecoderLayer": "Llama4TextMoe",
    "MiniMaxDecoderLayer": "MiniMaxSparseMoeBlock",
    "MiniMaxM2DecoderLayer": "MiniMaxM2SparseMoeBlock",
    "MixtralDecoderLayer": "MixtralSparseMoeBlock",
    "NemotronHBlock": "NemotronHMoE",
    "NllbMoeDecoderLayer": "NllbMoeSparseMLP",
    "NllbMoeEncoderLayer": "NllbMoeSparseMLP",
    "OlmoeDecoderLayer": "OlmoeSparseMoeBlock",
    "PhimoeDecoderLayer": "PhimoeSparseMoeBlock",
    "Qwen2MoeDecoderLayer": "Qwen2MoeSparseMoeBlock",
    "Qwen3MoeDecoderLayer": "Qwen3MoeSparseMoeBlock",
    "Qwen3NextDecoderLayer": "Qwen3NextSparseMoeBlock",
    "Qwen3VLMoeTextDecoderLayer": "Qwen3VLMoeTextSparseMoeBlock",
    "Qwen3_5MoeDecoderLayer": "Qwen3_5MoeSparseMoeBlock",
    "SolarOpenDecoderLayer": "SolarOpenMoE",
    "SwitchTransformersBlock": "SwitchTransformersSparseMLP",
}
"""By class of the layer it is in."""


def with_moe_classes(model: Architecture) -> Architecture:
    """The same architecture with the class named in every block that has experts."""
    if not any(stack.block.moe for stack in model.stacks):
        return model
    return replace(model, stacks=tuple(replace(stack, block=_named(stack.block)) for stack in model.stacks))


def _named(block: Block) -> Block:
    return replace(block, moe=replace(block.moe, class_name=MOE_CLASSES.get(block.class_name, ""))) if block.moe else block
