"""training_args.py: the plan as TrainingArguments of transformers 5.24, for Trainer and the trainers built on it.

Sources: transformers 5.24 ``training_args.py``, ``trainer.py``, ``trainer_optimizer.py``; accelerate 1.15
``parallelism_config.py``.
"""

from __future__ import annotations

from typing import Any

from app.domain.errors import ConflictError
from app.domain.plan import Artifact
from app.emit.job import EmitJob
from app.emit.model_source import class_names
from app.emit.pyimports import import_block
from app.emit.recipe import CLIENT_OPTIMIZERS, compute_dtype, fsdp_offload, header, hyperparameters, mixed_precision
from app.emit.render import literal, render

LINE_CHARS = 120
FILENAME = "training_args.py"
ATTENTION = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
ParallelCode = list[tuple[str, str]]


def training_arguments(job: EmitJob) -> Artifact:
    """Write training_args.py; under DeepSpeed it points to the ``hf_auto`` ds_config.json, which it fills in.

    Raises:
        ConflictError: an axis of parallelism the Trainer does not set up.
    """
    s = job.settings
    for name in ("pipeline_parallel", "expert_parallel"):
        if getattr(s, name) > 1:
            raise ConflictError(f"the Trainer has no argument for {name} {getattr(s, name)}; plan with {name} 1")
    mesh = _mesh(job)
    imports = ["typing:Any", "transformers:TrainingArguments"]
    if mesh:
        imports.append("accelerate:ParallelismConfig")
    if "sp_handler" in dict(mesh):
        imports.append("accelerate.utils:DeepSpeedSequenceParallelConfig")
    text = render(
        "training_args.py.j2",
        s=s,
        header=header(job),
        revision=job.revision,
        imports=import_block(imports),
        attention=ATTENTION[s.attention],
        lines=[_line(name, value) for name, value in _arguments(job).items()],
        mesh=mesh,
        notes=_notes(job),
    )
    return Artifact(filename=FILENAME, media_type="text/x-python", text=text)


def sequence_parallel_fields(job: EmitJob) -> dict[str, Any]:
    """What accelerate's ParallelismConfig needs for DeepSpeed's sequence parallelism, without a prefix."""
    s = job.settings
    return {
        "dp_shard_size": s.dp,
        "sp_size": s.sequence_parallel,
        "sp_backend": "deepspeed",
        "sp_seq_length": s.seq_len,
        "sp_seq_length_is_variable": False,
        # Scores are never formed, so the eager kernel has no counterpart here.
        "sp_attn_implementation": ATTENTION["sdpa" if s.attention == "eager" else s.attention],
    }


def mesh_sizes(job: EmitJob) -> dict[str, int]:
    """Sizes of the axes of an FSDP2 mesh by accelerate's names, without a prefix; none where the ranks are one line."""
    s = job.settings
    if s.dp_replicate == s.tensor_parallel == s.sequence_parallel == 1:
        return {}
    return {
        "dp_replicate_size": s.dp_replicate,
        "dp_shard_size": s.dp_shard,
        "tp_size": s.tensor_parallel,
        "cp_size": s.sequence_parallel,
    }


def _arguments(job: EmitJob) -> dict[str, Any]:
    """Arguments whose value the plan decides, in the order of their documentation."""
    s, h, dtype = job.settings, hyperparameters(job), compute_dtype(job)
    values: dict[str, Any] = {
        "per_device_train_batch_size": s.micro_batch,
        "gradient_accumulation_steps": s.grad_accum,
        "max_grad_norm": float(s.gradient_clipping),
        "learning_rate": h.lr,
        "weight_decay": h.weight_decay,
        "adam_beta1": h.betas[0],
        "adam_beta2": h.betas[1],
        "adam_epsilon": h.eps,
        **_optimizer(job),
    }
    # Under DeepSpeed the flag fills "auto" in; elsewhere it means mixed precision, which upcasts the weights that are trained.
    mixed = dtype if s.framework == "deepspeed" else mixed_precision(job)
    if mixed in ("bf16", "fp16"):
        values[mixed] = True
    if s.framework != "fsdp2" and s.activation_checkpointing != "none":
        values["activation_checkpointing"] = True
        values["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    if s.compile:
        values["torch_compile"] = True
    if s.fused_loss:
        values["use_liger_kernel"] = True
    return values | {"deepspeed": _deepspeed, "fsdp2": _fsdp2, "ddp": _ddp}[s.framework](job)


def _optimizer(job: EmitJob) -> dict[str, Any]:
    """The optimizer by the Trainer's name; none where ds_config.json builds it or the Trainer has no name for it."""
    s = job.settings
    sharded = s.framework == "fsdp2"
    if s.framework == "deepspeed" and s.optimizer not in CLIENT_OPTIMIZERS:
        return {}
    names = {
        "adamw": "adamw_torch_fused" if s.optimizer_implementation == "fused" else "adamw_torch",
        "adamw_8bit": "adamw_torch_8bit" if sharded else "adamw_bnb_8bit",
        "paged_adamw_8bit": "adamw_torch_8bit" if sharded else "paged_adamw_8bit",
        "adafactor": "adafactor",
        "sgd": "sgd",
        "sgd_momentum": "sgd",
    }
    if not sharded:
        names["lion"] = "lion_32bit"
    if s.optimizer not in names:
        return {}
    momentum = {"optim_args": f"momentum={hyperparameters(job).momentum}"} if s.optimizer == "sgd_momentum" else {}
    return {"optim": names[s.optimizer], **momentum}


def _deepspeed(_: EmitJob) -> dict[str, Any]:
    return {"deepspeed": "ds_config.json"}


def _ddp(job: EmitJob) -> dict[str, Any]:
    return {"ddp_find_unused_parameters": False} if job.settings.world_size > 1 else {}


def _fsdp2(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    # cpu_offload, for the offload_params that accelerate.yaml says is dropped here without a word.
    block: dict[str, Any] = {
        "version": 2,
        "reshard_after_forward": s.strategy != "fsdp_grad_op",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    if names := class_names(job):
        block["transformer_layer_cls_to_wrap"] = names
    block |= {
        "cpu_offload": fsdp_offload(job),
        "activation_checkpointing": s.activation_checkpointing != "none",
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    values: dict[str, Any] = {"fsdp": True, "fsdp_config": block}
    if s.grad_accum > 1:
        # Otherwise every GPU holds whole, unsharded gradients until the last micro-step.
        values["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return values


def _mesh(job: EmitJob) -> ParallelCode:
    """Arguments of ParallelismConfig as code; none where the ranks are one line."""
    s = job.settings
    if s.framework == "deepspeed" and s.sequence_parallel > 1:
        fields = sequence_parallel_fields(job)
        handler = ", ".join(f"{k}={literal(v)}" for k, v in fields.items() if k.startswith(("sp_seq", "sp_attn")))
        code = {"sp_handler": f"DeepSpeedSequenceParallelConfig(\n                {_wrapped(handler)}\n            )"}
        return [(k, literal(v)) for k, v in fields.items() if k in ("dp_shard_size", "sp_size", "sp_backend")] + list(code.items())
    return [(axis, literal(size)) for axis, size in mesh_sizes(job).items()] if s.framework == "fsdp2" else []


def _wrapped(code: str) -> str:
    """Arguments as the formatter breaks them: on one line of their own where they fit."""
    return code if len(code) + 16 <= LINE_CHARS else code.replace(", ", ",\n                ") + ","


def _line(name: str, value: Any) -> str:
    """One entry of the dictionary, a nested one spread over lines."""
    if not isinstance(value, dict):
        return f"{literal(name)}: {literal(value)},"
    flat = f"{literal(name)}: {literal(value)},"
    if len(value) == 1 and len(flat) + 8 <= LINE_CHARS:
        return flat
    inner = "".join(f"            {literal(key)}: {literal(item)},\n" for key, item in value.items())
    return f"{literal(name)}: {{\n{inner}        }},"


def _notes(job: EmitJob) -> list[str]:
    """What of the plan the arguments cannot say."""
    s = job.settings
    sharded = s.framework == "fsdp2"
    upcast = s.framework != "deepspeed" and s.param_dtype == "fp32"
    said = {
        "load model and tokenizer with revision=REVISION": job.revision is not None,
        f'load the model with attn_implementation="{ATTENTION[s.attention]}"': True,
        "load the model in " + s.param_dtype + ", in which its weights stay": s.framework != "deepspeed"
        and mixed_precision(job) == "no" and s.param_dtype != "fp32",
        "gradients are reduced in the compute dtype, where the plan has fp32": sharded
        and mixed_precision(job) != "no" and s.reduce_dtype == "fp32",
        "selective checkpointing has no argument: whole layers are recomputed": s.activation_checkpointing == "selective",
        "offloaded activations have no argument: block inputs stay on the GPU": s.activation_offload,
        "the fused loss needs the package liger-kernel": s.fused_loss,
        "float8 layers have no argument: convert the model with torchao before it is handed over": s.precision == "fp8",
        f"{s.optimizer} has no name here: hand it over as Trainer(optimizers=…)": s.framework != "deepspeed" and not _optimizer(job),
        "a paged optimizer does not know sharded tensors; its states stay on the GPU": sharded and s.optimizer == "paged_adamw_8bit",
        "optimizer_in_backward has no argument: gradients live until the step": s.optimizer_in_backward,
        'load the model with tp_plan="auto" before it is handed over': sharded and s.tensor_parallel > 1,
        "the Trainer divides no states: hand over Trainer(optimizers=(ZeroRedundancyOptimizer(…), scheduler))": s.divides_states,
        f"for the plan's dtype, get_peft_model(model, lora, autocast_adapter_dtype={upcast})": job.adapter is not None,
    }  # fmt: skip
    return [text for text, applies in said.items() if applies]
