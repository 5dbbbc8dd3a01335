"""What the three training scripts share: the values their templates are filled with, and the imports they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.errors import ConflictError
from app.domain.model.parameters import is_moe
from app.domain.plan import Artifact
from app.domain.units import format_gib
from app.emit.job import EmitJob
from app.emit.model_source import auto_class, class_names, config_of, config_text, shaped_tiny
from app.emit.pyimports import import_block
from app.emit.recipe import CLIENT_OPTIMIZERS, TORCH_DTYPES, compute_dtype, fsdp_offload, header, hyperparameters
from app.emit.render import render
from app.emit.tiny import tiny_overrides

OBJECTIVES = {"AutoModelForMaskedLM": "masked", "AutoModelForSeq2SeqLM": "seq2seq"}
TASKS = {"AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM", "AutoModelForMaskedLM": "FEATURE_EXTRACTION"}
ATTENTION_TARGETS = {"attention": ["q_proj", "k_proj", "v_proj", "o_proj"]}
CHECKPOINT_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
STATE_DICT = "torch.distributed.checkpoint.state_dict"

COMMON_IMPORTS = (
    "argparse", "json", "os", "time", "pathlib:Path", "numpy as np", "torch", "torch.distributed as dist",
    "torch.nn.functional:cross_entropy", "transformers:AutoConfig", "transformers:AutoTokenizer", "transformers:PretrainedConfig",
    "transformers:PreTrainedModel",
)  # fmt: skip
TORCH_IMPORTS = (
    "torch.distributed.checkpoint as dcp", f"{STATE_DICT}:StateDictOptions",
    f"{STATE_DICT}:get_state_dict", f"{STATE_DICT}:set_state_dict",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script to write.

    Attributes:
        filename: what it is called.
        launcher: fsdp2, ddp or deepspeed: which parts of the shared templates it takes.
        imports: what it imports besides the common set.
        extra: values only its own template uses.
    """

    filename: str
    launcher: str
    imports: tuple[str, ...]
    extra: Mapping[str, Any]


def write_script(job: EmitJob, script: Script) -> Artifact:
    """Fill in the template named like the file.

    Raises:
        ConflictError: the plan uses an axis of parallelism these scripts do not set up.
    """
    _refuse_other_axes(job)
    values = {**_values(job, script.launcher), **script.extra}
    wanted = [*COMMON_IMPORTS, *_feature_imports(job, values), *script.imports]
    values["imports"] = import_block(wanted)
    text = render(f"{script.filename}.j2", **values)
    return Artifact(filename=script.filename, media_type="text/x-python", text=text)


def _refuse_other_axes(job: EmitJob) -> None:
    s = job.settings
    axes = {
        "pipeline_parallel": s.pipeline_parallel,
        "sequence_parallel": s.sequence_parallel,
        "expert_parallel": s.expert_parallel,
    }
    for name, degree in axes.items():
        if degree > 1:
            raise ConflictError(
                f"no training script is written for {name} {degree}: it needs a model that is written for it; "
                f"use the configuration files with such a trainer, or plan with {name} 1"
            )


def _values(job: EmitJob, launcher: str) -> dict[str, Any]:
    s, config, auto = job.settings, config_of(job), auto_class(job)
    text = config_text(config) if config else ""
    tiny = tiny_overrides(config) if config else shaped_tiny(job.model)
    return {
        "s": s,
        "launcher": launcher,
        "header": header(job),
        "hf_id": job.hf_id,
        "revision": job.revision,
        "at_revision": ", revision=args.revision" if job.revision else "",
        "block_classes": set(class_names(job)),
        "compute_dtype": TORCH_DTYPES[compute_dtype(job)],
        "param_dtype": TORCH_DTYPES[s.param_dtype],
        "planned": {"allocated": _gib(job.planned_allocated_bytes), "reserved": _gib(job.planned_reserved_bytes)},
        "config_text": text,
        "tiny_text": config_text(tiny),
        "config_noqa": "  # noqa: E501" if any(len(line) > 120 for line in text.splitlines()) else "",
        "h": hyperparameters(job),
        "auto_class": auto,
        "objective": OBJECTIVES.get(auto, "causal"),
        "adapter": _adapter(job, auto),
        "split_head": launcher == "deepspeed" and s.tensor_parallel > 1 and auto != "AutoModelForSeq2SeqLM",
        "qlora": bool(job.adapter and job.adapter.get("kind") == "qlora"),
        "one_micro_step": s.optimizer_in_backward,
        "touches_blocks": s.activation_checkpointing != "none" or s.compile or s.activation_offload,
        "block_steps": _block_steps(job),
        "offload": launcher == "fsdp2" and fsdp_offload(job),
        "moe": is_moe(job.model),
        "scaler": launcher != "deepspeed" and s.precision == "fp16",
        "autocast": launcher == "ddp" and compute_dtype(job) != s.param_dtype,
        "client_optimizer": s.optimizer in CLIENT_OPTIMIZERS,
        "optimizer_call": _optimizer_call(job, launcher),
        "optimizer_words": _OPTIMIZER_WORDS["sharded" if s.divides_states else launcher],
        "needs": _needs(job, launcher),
    }


_OPTIMIZER_WORDS = {
    "fsdp2": "Built after fully_shard, so that they hold the sharded weights; built before, they would train nothing",
    "sharded": "Each rank steps the whole tensors it is dealt, and sends them to the others; their states are on it alone",
    "ddp": "The plan's optimizer over the weights that are trained",
    "deepspeed": "The plan's optimizer, which DeepSpeed has no name for",
}


def _gib(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_gib(num_bytes)


def _adapter(job: EmitJob, auto: str) -> dict[str, Any] | None:
    if not job.adapter:
        return None
    targets = job.adapter.get("targets") or "all-linear"
    return {
        "rank": int(job.adapter.get("rank") or 16),
        "dropout": float(job.adapter.get("dropout") or 0.0),
        "targets": ATTENTION_TARGETS.get(targets, targets) if isinstance(targets, str) else list(targets),
        "modules_to_save": list(job.adapter.get("modules_to_save") or ()),
        "base_bits": int(job.adapter.get("base_bits") or 4),
        "task": TASKS.get(auto, "CAUSAL_LM"),
    }


def _block_steps(job: EmitJob) -> str:
    s = job.settings
    steps = []
    if s.activation_checkpointing != "none":
        steps.append(f"{s.activation_checkpointing} activation checkpointing")
    if s.activation_offload:
        steps.append("activations kept in host memory")
    if s.compile:
        steps.append("torch.compile")
    return ", ".join(steps)[:1].upper() + ", ".join(steps)[1:]


def _optimizer_call(job: EmitJob, launcher: str) -> str:
    s, h = job.settings, hyperparameters(job)
    adam = f"params, lr=lr, betas={h.betas}, eps={h.eps}, weight_decay={h.weight_decay}"
    if s.optimizer in ("adamw_8bit", "paged_adamw_8bit"):
        # bitsandbytes does not know DTensors; torchao's 8-bit AdamW does, but has no paged form.
        return f"{_eight_bit_class(job, launcher)}({adam})"
    flags = {"foreach": "foreach=True", "loop": "foreach=False"}.get(s.optimizer_implementation, "fused=True")
    calls = {
        "adafactor": f"{'Adafactor' if launcher == 'fsdp2' else 'torch.optim.Adafactor'}(params, lr=lr, weight_decay={h.weight_decay})",
        "lion": f"Lion(params, lr=lr, betas={h.betas}, weight_decay={h.weight_decay})",
        "sgd_momentum": f"torch.optim.SGD(params, lr=lr, momentum={h.momentum}, weight_decay={h.weight_decay})",
        "sgd": f"torch.optim.SGD(params, lr=lr, weight_decay={h.weight_decay})",
    }
    return calls.get(s.optimizer, f"torch.optim.AdamW({adam}, {flags})")


def _eight_bit_class(job: EmitJob, launcher: str) -> str:
    if launcher == "fsdp2":
        return "AdamW8bit"
    return "bnb.optim.PagedAdamW8bit" if job.settings.optimizer.startswith("paged") else "bnb.optim.AdamW8bit"


def _feature_imports(job: EmitJob, values: Mapping[str, Any]) -> list[str]:
    s, launcher = job.settings, values["launcher"]
    wanted = [f"transformers:{values['auto_class']}"]
    wanted += _block_imports(job, launcher)
    if s.activation_checkpointing == "selective":
        wanted += ["collections:Counter", "torch.utils.checkpoint:CheckpointPolicy"]
        wanted.append("torch.utils.checkpoint:create_selective_checkpoint_contexts")
    if values["split_head"]:
        wanted += ["deepspeed.sequence:vocab_parallel_cross_entropy", "deepspeed.utils:groups"]
    if s.precision == "fp8":
        wanted.append("torchao.float8:convert_to_float8_training")
    if launcher != "deepspeed":
        wanted.append("datetime:timedelta")
        if not s.optimizer_in_backward and s.tensor_parallel == 1:
            wanted.append("torch.distributed.tensor:DTensor")
    if s.fused_loss:
        wanted += ["torch.utils.checkpoint:checkpoint", "torch.nn.functional:linear"]
    if values["adapter"]:
        wanted += ["peft:LoraConfig", "peft:get_peft_model"]
    if values["qlora"]:
        wanted.append("transformers:BitsAndBytesConfig")
    if "8bit" in s.optimizer:
        wanted.append("torchao.optim:AdamW8bit" if launcher == "fsdp2" else "bitsandbytes as bnb")
    return wanted


def _block_imports(job: EmitJob, launcher: str) -> list[str]:
    """What wraps a block's module, or under DeepSpeed its forward."""
    s, wanted = job.settings, []
    if s.activation_checkpointing != "none":
        deepspeed = ["functools:partial", "torch.utils.checkpoint:checkpoint"]
        wanted += deepspeed if launcher == "deepspeed" else [f"{CHECKPOINT_WRAPPER}:checkpoint_wrapper"]
    if s.activation_offload:
        wanted.append("collections.abc:Callable" if launcher == "deepspeed" else f"{CHECKPOINT_WRAPPER}:offload_wrapper")
    return wanted


def _needs(job: EmitJob, launcher: str) -> str:
    """Packages to install, for the script's docstring."""
    named = dict(job.versions.given) if job.versions else {}
    names = [f"torch >= {named.get('torch', '2.9')}", "transformers >= 5", "numpy"]
    if launcher == "deepspeed":
        names.append(f"deepspeed >= {named.get('deepspeed', '0.19.8')}")
    if job.adapter:
        names.append("peft")
    if job.settings.precision == "fp8":
        names.append("torchao")
    if "8bit" in job.settings.optimizer:
        names.append("torchao" if launcher == "fsdp2" else "bitsandbytes")
    if job.adapter and job.adapter.get("kind") == "qlora" and "bitsandbytes" not in names:
        names.append("bitsandbytes")
    names = list(dict.fromkeys(names))
    return ", ".join(names[:-1]) + " and " + names[-1]
