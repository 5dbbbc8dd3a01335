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
    Exclusion(
        what="DeepSpeed's fused AdamW, the default on GPUs",
        why="a CUDA kernel; the one of that name for CPUs would prove another file",
        instead="the same config with torch's AdamW (`torch_adam`), and with DeepSpeed's CPU Adam under offload",
    ),
    Exclusion(
        what="Lion and Muon under DeepSpeed",
        why="their kernels or their arithmetic differ from torch's, so there is no reference run",
        instead="DeepSpeed's parser reads the blocks; SGD with and without momentum is trained with; Muon and Adafactor are under FSDP2",
    ),
    Exclusion(
        what="sequence parallelism",
        why="no script is written for it: it needs a model that is",
        instead="DeepSpeed's and accelerate's parsers read the keys",
    ),
    Exclusion(
        what="several nodes: srun, rendezvous, hostfiles, hpZ between nodes",
        why="one machine",
        instead="meshes, hpZ and HSDP on four ranks; `launch.sh` of one node started for real",
    ),
    Exclusion(
        what="DeepSpeed between the oldest and the newest release claimed, torch older than 2.13",
        why="one environment a run; each further one would need builds of its own",
        instead="the oldest DeepSpeed trains at stages 1 to 3 beside the newest; what each release knows is in app/catalog/keys.json",
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
