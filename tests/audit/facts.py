"""Models, recipes and GPUs that the rules' examples are put to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.audit.subject import ClusterFacts, Degrees, ModelFacts, Subject, TrainingFacts

LLAMA_8B = ModelFacts(
    name="llama-3.1-8b", family="llama", total_params=8_030_261_248, trainable_params=8_030_261_248, active_params=None,
    largest_param_numel=525_336_576, largest_trainable_numel=525_336_576, hidden_size=4096, num_layers=32, vocab_size=128_256,
    num_heads=32, num_kv_heads=8, block_classes=("LlamaDecoderLayer",), moe_class="", is_moe=False, multimodal=False,
    encoder_decoder=False, hf_class="LlamaForCausalLM",
)  # fmt: skip
SMALL = replace(
    LLAMA_8B, name="small", total_params=500_000_000, trainable_params=500_000_000, largest_param_numel=60_000_000,
    largest_trainable_numel=60_000_000, hidden_size=1024, num_layers=24, vocab_size=50_000,
)  # fmt: skip
LORA = replace(LLAMA_8B, trainable_params=42_000_000, largest_trainable_numel=1_000_000, adapter="lora")
QLORA = replace(LORA, adapter="qlora", base_bits=4)
LLAMA_70B = replace(LLAMA_8B, name="llama-70b", total_params=70_600_000_000, trainable_params=70_600_000_000, hidden_size=8192,
num_layers=80,
                    largest_param_numel=1_050_673_152, largest_trainable_numel=1_050_673_152, num_heads=64)  # fmt: skip
LORA_70B = replace(LLAMA_70B, trainable_params=200_000_000, adapter="lora")
T5_11B = replace(
    LLAMA_8B, name="t5-11b", family="t5", total_params=11_307_000_000, trainable_params=11_307_000_000, hidden_size=1024, num_layers=48,
    vocab_size=32_128, largest_param_numel=67_108_864, largest_trainable_numel=67_108_864, num_heads=128, num_kv_heads=128,
    encoder_decoder=True, hf_class="T5ForConditionalGeneration",
)  # fmt: skip
QWEN_14B = replace(LLAMA_8B, name="qwen2.5-14b", total_params=14_770_000_000, trainable_params=14_770_000_000, num_heads=40, num_kv_heads=8)
QWEN_32B = replace(LLAMA_8B, name="qwen2.5-32b", total_params=32_760_000_000, trainable_params=32_760_000_000, num_heads=40, num_kv_heads=8)
MIXTRAL = replace(
    LLAMA_8B, name="mixtral-8x7b", total_params=46_703_000_000, trainable_params=46_703_000_000, active_params=12_900_000_000,
    is_moe=True, moe_class="MixtralSparseMoeBlock",
)  # fmt: skip
OTHER_MOE = replace(MIXTRAL, moe_class="OlmoeSparseMoeBlock")
OWN_MOE = replace(MIXTRAL, moe_class="deepspeed.moe.layer.MoE")
VISION = replace(LLAMA_8B, multimodal=True)

TRAINING = TrainingFacts(
    seq_len=4096, micro_batch=None, grad_accum=None, global_batch=None, precision="bf16", optimizer="adamw",
    activation_checkpointing="full", compile=False, attention="flash",
)  # fmt: skip
NODE = ClusterFacts(
    gpu_name="H100 SXM 80GB", gpu_architecture="hopper", vendor="nvidia", supports=frozenset({"fp16", "bf16", "fp8"}), gpu_bytes=80 * 2**30,
    gpus_per_node=8, nodes=1, host_bytes=2048 * 2**30, inter_node_bytes_per_s=None, nvlink=True,
)  # fmt: skip
TWO_NODES = replace(NODE, nodes=2, inter_node_bytes_per_s=1.25e9)
PASCAL = replace(NODE, gpu_name="TITAN X (sm_61)", gpu_architecture="pascal", supports=frozenset(), gpu_bytes=12 * 2**30)
VOLTA = replace(NODE, gpu_name="V100 SXM2 32GB", gpu_architecture="volta", supports=frozenset({"fp16"}), gpu_bytes=32 * 2**30)
AMD = replace(NODE, gpu_name="MI300X", gpu_architecture="cdna3 gfx942", vendor="amd")
LITTLE_RAM = replace(NODE, host_bytes=128 * 10**9)
RELEASES = {"deepspeed": "0.19.8", "torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0"}


def subject(config: dict[str, Any], **context: Any) -> Subject:
    """A subject of a ds_config; ``release`` is DeepSpeed's, ``tp``, ``pp`` and ``sp`` are degrees."""
    releases = RELEASES | {"deepspeed": context.pop("release", RELEASES["deepspeed"])} | context.pop("releases", {})
    degrees = Degrees(tensor_parallel=context.pop("tp", 1), pipeline_parallel=context.pop("pp", 1), sequence_parallel=context.pop("sp", 1))
    given = {"kind": "deepspeed", "launcher": "deepspeed", "releases": releases, "degrees": degrees} | context
    return Subject(config=config, **given)
