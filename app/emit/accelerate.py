"""accelerate.yaml: the plan for ``accelerate launch`` 1.15, whose traps are that unknown keys are silently dropped.

Sources: accelerate 1.15 ``commands/launch.py``, ``utils/dataclasses.py``.
"""

from __future__ import annotations

from typing import Any

import yaml

from app.domain.parallel.fsdp_names import to_fsdp1
from app.domain.plan import Artifact
from app.emit.hf_args import mesh_sizes, sequence_parallel_fields
from app.emit.job import EmitJob
from app.emit.model_source import class_names
from app.emit.recipe import CLIENT_OPTIMIZERS, fsdp_offload, header, mixed_precision, zero_stage

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's, where PyYAML was built with it, as its wheels are: the same text in a tenth of the time."""


def accelerate_config(job: EmitJob) -> Artifact:
    """Write accelerate.yaml; under DeepSpeed it points to ds_config.json, the only place that may say the same things."""
    writer = {"deepspeed": _deepspeed, "fsdp2": _fsdp2, "ddp": _ddp}[job.settings.framework]
    config = {"compute_environment": "LOCAL_MACHINE", **writer(job), **_machines(job)}
    notes = [*header(job), *_notes(job)]
    text = "".join(f"# {line}".rstrip() + "\n" for line in notes) + yaml.dump(
        config, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120
    )
    return Artifact(filename="accelerate.yaml", media_type="application/yaml", text=text)


def _machines(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    out: dict[str, Any] = {
        "num_processes": s.world_size,
        "num_machines": s.nodes,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
    }
    return out if s.nodes == 1 else {**out, "same_network": True, "main_process_port": 29500}


def _deepspeed(job: EmitJob) -> dict[str, Any]:
    # No mixed_precision and no zero_stage beside the file: accelerate refuses to hear it twice.
    block: dict[str, Any] = {"deepspeed_config_file": "ds_config.json", "zero3_init_flag": zero_stage(job) == 3}
    if job.settings.nodes > 1:
        block["deepspeed_multinode_launcher"] = "standard"
    config: dict[str, Any] = {"distributed_type": "DEEPSPEED", "deepspeed_config": block}
    if job.settings.sequence_parallel > 1:
        # What splits sequences: sizes in ds_config.json alone would only change how batches are counted.
        fields = sequence_parallel_fields(job)
        config["parallelism_config"] = {f"parallelism_config_{name}": value for name, value in fields.items()}
    return config


def _ddp(job: EmitJob) -> dict[str, Any]:
    kind = "MULTI_GPU" if job.settings.world_size > 1 else "NO"
    return {"distributed_type": kind, "mixed_precision": mixed_precision(job)}


def _fsdp2(job: EmitJob) -> dict[str, Any]:
    s = job.settings
    block: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": s.strategy != "fsdp_grad_op",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    # Left out where unknown: accelerate then asks the model for its own list.
    if names := class_names(job):
        block["fsdp_transformer_layer_cls_to_wrap"] = ",".join(names)
    block |= {
        "fsdp_offload_params": fsdp_offload(job),
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_activation_checkpointing": s.activation_checkpointing != "none",
    }
    if s.activation_offload and s.activation_checkpointing != "none":
        block["fsdp_activation_checkpointing_offload"] = True
    config = {"distributed_type": "FSDP", "mixed_precision": mixed_precision(job), "fsdp_config": block}
    return {**config, **_parallelism(job)}


def _parallelism(job: EmitJob) -> dict[str, Any]:
    """The mesh, where it is more than one line of ranks. Keys without the prefix would be dropped in silence."""
    sizes = {f"parallelism_config_{axis}": size for axis, size in mesh_sizes(job).items()}
    return {"parallelism_config": sizes} if sizes else {}


def _notes(job: EmitJob) -> list[str]:
    s = job.settings
    start = "accelerate launch --config_file accelerate.yaml"
    if s.nodes > 1:
        start += " --machine_rank RANK --main_process_ip HEAD"
    notes = ["", f"{start} your_train.py"]
    if s.framework == "deepspeed":
        return notes + _deepspeed_notes(job)
    if s.divides_states:
        notes.append("accelerate does not divide the optimizer: build ZeroRedundancyOptimizer in your script, as ddp_train.py does.")
    if s.framework == "ddp":
        return notes
    if s.activation_checkpointing == "selective":
        notes.append("accelerate knows no selective checkpointing: this file recomputes whole layers, slower and smaller.")
    if mixed_precision(job) != "no" and s.reduce_dtype == "fp32":
        notes.append("accelerate reduces gradients in the compute dtype; for fp32 pass a MixedPrecisionPolicy in Python.")
    notes += _as_fsdp1(job)
    if s.grad_accum > 1:
        notes.append("In the script: GradientAccumulationPlugin(sync_each_batch=True), else every GPU holds whole gradients.")
    return notes


def _deepspeed_notes(job: EmitJob) -> list[str]:
    """What a script must do for ds_config.json to be obeyed under accelerate."""
    s = job.settings
    if s.optimizer in CLIENT_OPTIMIZERS:
        notes = [f"In the script: build {s.optimizer} and hand it to prepare(); ds_config.json names no optimizer."]
    else:
        notes = ["In the script: accelerate.utils.DummyOptim(model.parameters()) in place of an optimizer, which ds_config.json builds."]
    if s.tensor_parallel > 1:
        notes.append("Tensor parallelism is in ds_config.json (autotp_size), where accelerate looks for it; it takes no block here.")
    if s.sequence_parallel > 1:
        kernel = sequence_parallel_fields(job)["sp_attn_implementation"]
        notes += [
            f'In the script: load the model with attn_implementation="{kernel}"; prepare() then cuts batches and swaps attention.',
            "The loss is each rank's own: weigh it by tokens over the ranks of a sequence. The Trainer does that by itself.",
        ]
    return notes


def _as_fsdp1(job: EmitJob) -> list[str]:
    """The same in FSDP1's names, for a trainer that knows no others; its mesh has no axis within a copy."""
    s = job.settings
    if s.tensor_parallel > 1 or s.sequence_parallel > 1:
        return ["FSDP1 has no counterpart: its ranks have no axis for tensors or sequences."]
    block = _fsdp2(job)["fsdp_config"]
    old = to_fsdp1(block, replicates=s.dp_replicate > 1)
    changed = ", ".join(f"{key} {_word(value)}" for key, value in old.config.items() if block.get(key) != value)
    said = [f"As FSDP1: {changed}; without fsdp_reshard_after_forward{' and parallelism_config' if s.dp_replicate > 1 else ''}."]
    if s.dp_replicate > 1 and s.dp_shard != s.gpus_per_node:
        said.append(f"FSDP1 makes a copy a node, of {s.gpus_per_node} ranks where this file has {s.dp_shard}.")
    return said + ([f"FSDP1 has no {', '.join(old.lost)}."] if old.lost else [])


def _word(value: Any) -> str:
    """A value as YAML spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
