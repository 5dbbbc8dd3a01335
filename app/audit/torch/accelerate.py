"""The rest of accelerate's YAML: names at the top, and the compiler."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.reading import at
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import ACCELERATE, DEEPSPEED_KEYS, PREFIX, is_whole, near
from app.audit.torch.parallelism import PREFIX as MESH_PREFIX

TOP = frozenset({
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes", "machine_rank", "num_machines",
    "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network", "main_training_function", "enable_cpu_affinity",
    "fp8_config", "deepspeed_config", "fsdp_config", "parallelism_config", "megatron_lm_config", "mpirun_config", "downcast_bf16",
    "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env", "dynamo_config",
    "dynamo_backend", "fp16",
})  # fmt: skip
"""Keys of ``ClusterConfig``, and two older ones that are converted."""

BACKENDS = frozenset({
    "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT", "ONNXRT", "TENSORRT",
    "AOT_TORCHXLA_TRACE_ONCE", "TORHCHXLA_TRACE_ONCE", "IPEX", "TVM", "HPU_BACKEND",
})  # fmt: skip


@rule(
    "AC019",
    Card(
        title="Unknown key at the top of the YAML",
        severity="error",
        effect="fails",
        why="The launcher raises ValueError for keys at the top that it does not know. Settings of FSDP, DeepSpeed and meshes belong into "
        "their blocks.",
        fix="Move the key into its block, spell it as accelerate does, or take it out.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def unknown_top(subject: Subject) -> Iterator[Hit]:
    """A key that stops the launcher."""
    if not is_whole(subject) or str(subject.config.get("compute_environment")) == "AMAZON_SAGEMAKER":
        return
    for key, value in subject.config.items():
        name = str(key)
        if name in TOP:
            continue
        home, meant = _home(name), near(name, TOP)
        place: tuple[str, ...]
        drop = Change(path=(name,), remove=True)
        if home:
            said, place = f"; it belongs into {home}", (home, name)
        else:
            said, place = (f"; {meant} was meant", (meant,)) if meant else ("", ())
        free = bool(place) and at(subject.config, ".".join(place)) is None
        yield Hit(
            path=name, message=f"{name} is no key at the top{said}", changes=(drop, Change(path=place, value=value)) if free else (drop,)
        )


def _home(name: str) -> str:
    """The block a key belongs into; empty for none."""
    if name.startswith(PREFIX):
        return "fsdp_config"
    if name.startswith(MESH_PREFIX):
        return "parallelism_config"
    return "deepspeed_config" if name in DEEPSPEED_KEYS else ""


@rule(
    "AC020",
    Card(
        title="A compiler that torch has not",
        severity="error",
        effect="fails",
        why="The launcher looks dynamo_backend up among its backends: ValueError.",
        fix="Write INDUCTOR, or NO.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def no_compiler(subject: Subject) -> Iterator[Hit]:
    """A backend nobody knows."""
    for path in ("dynamo_config.dynamo_backend", "dynamo_config.backend", "dynamo_backend"):
        said = at(subject.config, path)
        if said is None or said is False or str(said).upper() in BACKENDS:
            continue
        meant = near(str(said).upper(), BACKENDS) or "INDUCTOR"
        yield Hit(
            path=path,
            message=f"{said!r} is no backend of torch.compile; {meant} is",
            changes=(Change(path=tuple(path.split(".")), value=meant),),
        )
