"""Dtypes: what mixed precision does under FSDP, and what the GPUs can compute in."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.reading import at
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import ACCELERATE, FSDP_FILES, TRAINER, distributed_type, fsdp_block, is_whole, mixed_precision
from app.audit.torch.effective import effective_fsdp
from app.audit.torch.figures import state_bytes, trained
from app.domain.units import format_gib

PRECISIONS = ("no", "fp16", "bf16", "fp8")
OTHER_NAMES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8", "fp32": "no", "float32": "no", "none": "no"}


def _place(subject: Subject) -> str:
    """Where the file says its precision."""
    return mixed_precision(subject) if subject.kind == "hf_trainer" else "mixed_precision"


@rule(
    "FS021",
    Card(
        title="Gradients are reduced in bf16 and the loss is rounded",
        severity="info",
        effect="changed",
        why="accelerate gives FSDP2 one dtype for compute, reduction and output. Gradients of all ranks are added in it, "
        "and the loss that forward returns has 8 bits of precision, so logged losses look stuck. No key changes that.",
        fix="In Python, pass FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
        "reduce_dtype=torch.float32)).",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def reduced_in_bf16(subject: Subject) -> Iterator[Hit]:
    """One dtype for everything."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is None or acting is None or acting.version != 2 or acting.mixed_precision not in ("bf16", "fp16"):
        return
    if acting.shards == 1:
        return
    over = f" over {acting.shards} ranks" if acting.shards else ""
    yield Hit(path=_place(subject), message=f"gradients are reduced in {acting.reduce}{over}, and the loss is returned in it")


@rule(
    "FS022",
    Card(
        title="Mixed precision brings trained weights to fp32",
        severity="info",
        effect="memory",
        why="With mixed precision on, accelerate casts trained parameters to fp32 before it shards them, whatever dtype they were "
        "loaded in: 4 bytes of weight, 4 of gradient and 8 of AdamW for each. Without it a bf16 model trains in bf16, at half.",
        fix="Keep it for fp32 master weights. For pure bf16, load the model in bf16 and write mixed_precision: 'no'.",
        source="accelerate-fsdp",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def upcast(subject: Subject) -> Iterator[Hit]:
    """Twice the bytes of a bf16 model."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is None or acting is None or acting.mixed_precision not in ("bf16", "fp16"):
        return
    size, pure = state_bytes(subject, "fp32"), state_bytes(subject, acting.compute)
    message = f"each trained parameter takes {size:g} bytes, where pure {acting.compute} takes {pure:g}"
    if subject.model is not None and acting.shards:
        each = subject.model.trainable_params / acting.shards
        message += f": {trained(subject.model, size)}, over {acting.shards} ranks {format_gib(each * size)} a GPU, "
        message += f"and not {format_gib(each * pure)}"
    yield Hit(path=_place(subject), message=message)


@rule(
    "AC001",
    Card(
        title="mixed_precision that is no name",
        severity="error",
        effect="fails",
        why="YAML reads an unquoted no as false, and the launcher asks that for .lower(): AttributeError. Other words are a ValueError.",
        fix="Write 'no' in quotes, or fp16, bf16 or fp8.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def precision_name(subject: Subject) -> Iterator[Hit]:
    """An unquoted no, or a precision nobody knows."""
    said = subject.config.get("mixed_precision")
    if said is None or not is_whole(subject):
        return
    if said is False:
        beside_file = at(subject.config, "deepspeed_config.deepspeed_config_file") is not None and distributed_type(subject) == "DEEPSPEED"
        change = Change(path=("mixed_precision",), remove=True) if beside_file else Change(path=("mixed_precision",), value="no")
        yield Hit(path="mixed_precision", message="no without quotes is false in YAML, and the launcher stops at it", changes=(change,))
    elif str(said).lower() not in PRECISIONS:
        other = OTHER_NAMES.get(str(said).lower())
        yield Hit(
            path="mixed_precision",
            message=f"{said!r} is none of {', '.join(PRECISIONS)}",
            changes=(Change(path=("mixed_precision",), value=other),) if other else (),
        )


@rule(
    "AC002",
    Card(
        title="A precision the GPUs do not compute in",
        severity="warning",
        effect="changed",
        why="GPUs without bf16 units emulate it or refuse it; accelerate falls back to fp16 "
        "for fp8 on GPUs without fp8, with a warning only.",
        fix="Use fp16 where bf16 is missing, and bf16 where fp8 is.",
        source="accelerate-state",
        kinds=FSDP_FILES,
        needs=("cluster",),
        library="accelerate",
    ),
)
def unsupported_precision(subject: Subject) -> Iterator[Hit]:
    """A dtype without units for it."""
    cluster, said = subject.cluster, mixed_precision(subject)
    written = subject.config.get(_place(subject))
    if cluster is None or not written or said not in ("bf16", "fp8") or not cluster.supports or said in cluster.supports:
        return
    other = "fp16" if said == "bf16" else "bf16" if "bf16" in cluster.supports else "fp16"
    changes: tuple[Change, ...] = (Change(path=("mixed_precision",), value=other),)
    if subject.kind == "hf_trainer":
        changes = (Change(path=(said,), remove=True), Change(path=(other,), value=True))
    yield Hit(path=_place(subject), message=f"{cluster.gpu_name} has no {said}; use {other}", changes=changes)


@rule(
    "AC003",
    Card(
        title="torchao's fp8 with cpu_ram_efficient_loading",
        severity="error",
        effect="fails",
        why="Accelerator raises ValueError for torchao under FSDP with cpu_ram_efficient_loading, which the launcher has on by default.",
        fix="Write fsdp_cpu_ram_efficient_loading: false.",
        source="accelerate-state",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def torchao_loading(subject: Subject) -> Iterator[Hit]:
    """Two settings that exclude each other."""
    found = fsdp_block(subject)
    backend = at(subject.config, "fp8_config.backend") or at(subject.config, "fp8_config.fp8_backend")
    if found is None or mixed_precision(subject) != "fp8" or str(backend).upper() != "AO":
        return
    if found.flag("cpu_ram_efficient_loading", True):
        yield Hit(
            path=found.path("cpu_ram_efficient_loading"),
            message="torchao's fp8 and loading by one process exclude each other",
            changes=(found.put("cpu_ram_efficient_loading", False),),
        )


@rule(
    "HF002",
    Card(
        title="fp16 and bf16 at once",
        severity="error",
        effect="fails",
        why="TrainingArguments raises ValueError where both are true.",
        fix="Keep bf16 where the GPUs have it.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
    ),
)
def both_halves(subject: Subject) -> Iterator[Hit]:
    """Two mixed precisions."""
    if subject.config.get("fp16") is True and subject.config.get("bf16") is True:
        keep = "bf16" if subject.cluster is None or "bf16" in subject.cluster.supports else "fp16"
        yield Hit(
            path="fp16", message="fp16 and bf16 are both on", changes=(Change(path=("fp16" if keep == "bf16" else "bf16",), value=False),)
        )
