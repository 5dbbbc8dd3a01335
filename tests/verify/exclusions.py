"""What no CPU can show: counted in docs/verified.md instead of being passed over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """One thing the emitted files may ask for and this suite does not run."""

    what: str
    why: str
    instead: str


EXCLUSIONS = (
    Exclusion(
        what="`zero_quantized_weights`, `zero_quantized_gradients`",
        why="DeepSpeed's quantiser exists for GPUs only",
        instead="DeepSpeed's parser reads the keys",
    ),
    Exclusion(what="fp8 matmuls", why="torchao's float8 needs a GPU", instead="the script compiles and is lint-clean"),
    Exclusion(
        what="8-bit AdamW, QLoRA",
        why="bitsandbytes and torchao's 8-bit kernels need a GPU",
        instead="the script compiles and is lint-clean; the config is parsed",
    ),
    Exclusion(
        what="pinned host memory of FSDP2's offload",
        why="pinning needs an accelerator",
        instead="the same offload unpinned, which is the script's own choice on a CPU",
    ),
    Exclusion(
        what="NCCL, streams, `overlap_comm`, CUDA memory",
        why="gloo on CPU ranks",
        instead="the keys are parsed and trained with; figures are compared with published runs in docs/accuracy.md",
    ),
)
