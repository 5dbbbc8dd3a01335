"""Registry of the papers, documents and code that formulas and constants are taken from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A citable origin of a number.

    Attributes:
        key: short name used in cards and catalogues.
        title: what it is, in words.
        url: where it can be read; empty for observations made on installed libraries.
    """

    key: str
    title: str
    url: str = ""


_ARXIV = "https://arxiv.org/abs/"
_DS = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/"
_TORCH = "https://github.com/pytorch/pytorch/blob/main/torch/"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/main/src/accelerate/"
_HF = "https://github.com/huggingface/transformers/blob/main/src/transformers/"

SOURCES: dict[str, Source] = {
    s.key: s
    for s in (
        Source("zero", "Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", _ARXIV + "1910.02054"),
        Source("zero-offload", "Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training", _ARXIV + "2101.06840"),
        Source("zero-infinity", "Rajbhandari et al., ZeRO-Infinity", _ARXIV + "2104.07857"),
        Source("zeropp", "Wang et al., ZeRO++: Extremely Efficient Collective Communication", _ARXIV + "2306.10209"),
        Source("fsdp", "Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", _ARXIV + "2304.11277"),
        Source("korthikanti", "Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models", _ARXIV + "2205.05198"),
        Source("flash", "Dao et al., FlashAttention", _ARXIV + "2205.14135"),
        Source("megatron", "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters", _ARXIV + "2104.04473"),
        Source("qlora", "Dettmers et al., QLoRA: Efficient Finetuning of Quantized LLMs", _ARXIV + "2305.14314"),
        Source("ulysses", "Jacobs et al., DeepSpeed Ulysses: Training of Extreme Long Sequence Transformer Models", _ARXIV + "2309.14509"),
        Source("adam8bit", "Dettmers et al., 8-bit Optimizers via Block-wise Quantization", _ARXIV + "2110.02861"),
        Source("adafactor", "Shazeer and Stern, Adafactor", _ARXIV + "1804.04235"),
        Source("ddp", "Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training", _ARXIV + "2006.15704"),
        Source("ds-engine", "DeepSpeed 0.19.8, runtime/engine.py", _DS + "runtime/engine.py"),
        Source("ds-stage12", "DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py", _DS + "runtime/zero/stage_1_and_2.py"),
        Source("ds-stage3", "DeepSpeed 0.19.8, runtime/zero/stage3.py", _DS + "runtime/zero/stage3.py"),
        Source("ds-coordinator", "DeepSpeed 0.19.8, parameter coordinator", _DS + "runtime/zero/partitioned_param_coordinator.py"),
        Source("ds-pipe", "DeepSpeed 0.19.8, runtime/pipe/engine.py", _DS + "runtime/pipe/engine.py"),
        Source("ds-zero-config", "DeepSpeed 0.19.8, runtime/zero/config.py", _DS + "runtime/zero/config.py"),
        Source("ds-offload-config", "DeepSpeed 0.19.8, runtime/zero/offload_config.py", _DS + "runtime/zero/offload_config.py"),
        Source("ds-constants", "DeepSpeed 0.19.8, runtime/constants.py", _DS + "runtime/constants.py"),
        Source("ds-swap", "DeepSpeed 0.19.8, runtime/swap_tensor", _DS + "runtime/swap_tensor"),
        Source("ds-config", "DeepSpeed 0.17.1 to 0.19.8, runtime/config.py and runtime/config_utils.py", _DS + "runtime/config.py"),
        Source("ds-precision", "DeepSpeed 0.19.8, runtime/precision_config.py", _DS + "runtime/precision_config.py"),
        Source("ds-schedules", "DeepSpeed 0.19.8, runtime/lr_schedules.py", _DS + "runtime/lr_schedules.py"),
        Source("ds-zenflow", "DeepSpeed 0.19.8, runtime/zenflow", _DS + "runtime/zenflow"),
        Source("ds-compile", "DeepSpeed 0.19.8, compile/config.py", _DS + "compile/config.py"),
        Source("ds-tensor", "DeepSpeed 0.19.8, runtime/tensor_parallel/config.py", _DS + "runtime/tensor_parallel/config.py"),
        Source("ds-groups", "DeepSpeed 0.19.8, utils/groups.py", _DS + "utils/groups.py"),
        Source("ds-accelerator", "DeepSpeed 0.19.8, accelerator/cuda_accelerator.py", "https://github.com/deepspeedai/DeepSpeed/blob/master/accelerator/cuda_accelerator.py"),
        Source("hf-deepspeed", "transformers 5.24, integrations/deepspeed.py", "https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/deepspeed.py"),
        Source("ds-checkpoint", "DeepSpeed 0.19.8, runtime/engine.py save_checkpoint, and files it wrote", _DS + "runtime/engine.py"),
        Source("ds-zero-to-fp32", "DeepSpeed 0.19.8, utils/zero_to_fp32.py", _DS + "utils/zero_to_fp32.py"),
        Source("torch-dcp", "PyTorch 2.13, torch/distributed/checkpoint, and files it wrote", _TORCH + "distributed/checkpoint"),
        Source("torch-fsdp1", "PyTorch 2.13, torch/distributed/fsdp/api.py", _TORCH + "distributed/fsdp/api.py"),
        Source("torch-fsdp2", "PyTorch 2.13, torch/distributed/fsdp/_fully_shard", _TORCH + "distributed/fsdp/_fully_shard"),
        Source("torch-fsdp2-measured", "Live storages of PyTorch 2.13 fully_shard on a fake process group (tests/verify/test_live.py)"),
        Source("torch-pinned", "PyTorch 2.13, ATen/core/CachingHostAllocator.h", "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/core/CachingHostAllocator.h"),
        Source("torch-ddp", "PyTorch 2.13, torch/nn/parallel/distributed.py", _TORCH + "nn/parallel/distributed.py"),
        Source("torch-optim", "PyTorch 2.13, torch/optim", _TORCH + "optim"),
        Source("hf-activations", "Saved tensors of transformers 5.24 blocks, counted operation by operation on fake tensors"),
        Source("hf-loading", "transformers 5.24, modeling_utils.py", "https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_utils.py"),
        Source("hf-loss", "transformers 5.24, loss/loss_utils.py", "https://github.com/huggingface/transformers/blob/main/src/transformers/loss/loss_utils.py"),
        Source("accelerate-launch", "accelerate 1.15, commands/launch.py and utils/launch.py", _ACCELERATE + "commands/launch.py"),
        Source("accelerate-plugin", "accelerate 1.15, utils/dataclasses.py", _ACCELERATE + "utils/dataclasses.py"),
        Source("accelerate-fsdp", "accelerate 1.15, utils/fsdp_utils.py", _ACCELERATE + "utils/fsdp_utils.py"),
        Source("accelerate-parallelism", "accelerate 1.15, parallelism_config.py", _ACCELERATE + "parallelism_config.py"),
        Source("accelerate-state", "accelerate 1.15, state.py", _ACCELERATE + "state.py"),
        Source("hf-arguments", "transformers 5.24, training_args.py", _HF + "training_args.py"),
        Source("hf-trainer", "transformers 5.24, trainer.py", _HF + "trainer.py"),
        Source("liger", "Hsu et al., Liger Kernel", _ARXIV + "2410.10989"),
        Source("nccl", "NVIDIA NCCL, src/graph/tuning.cc", "https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc"),
        Source("nccl-tests", "NVIDIA nccl-tests, doc/PERFORMANCE.md", "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"),
        Source("ml-engineering", "Bekman, Machine Learning Engineering", "https://github.com/stas00/ml-engineering"),
        Source("mosaic", "MosaicML llm-foundry, scripts/train/benchmarking", "https://github.com/mosaicml/llm-foundry/tree/main/scripts/train/benchmarking"),
        Source("torchtitan", "PyTorch torchtitan, models/utils.py and benchmarks", "https://github.com/pytorch/torchtitan"),
        Source("public-rows", "Fitted on published measurements by `make fit` (docs/accuracy.md)"),
        Source("allocator-replay", "Allocations of simulated steps, replayed through a model of torch's caching allocator (`make fit`)"),
        Source("product", "A rule of this product, explained in docs/adr"),
    )
}  # fmt: skip


def source(key: str) -> Source:
    """Look a source up; an unknown key is a programming error and raises KeyError at import of the card."""
    return SOURCES[key]
