"""Takes translated and emitted blocks through accelerate's own plugins and transformers' own arguments: python ... FILE"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin, dataclasses
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env


def plugin(path: Path) -> dict[str, Any]:
    """Fields of the FSDP plugin a rank would build from an accelerate file, or why it would not."""
    arguments = ["--config_file", str(path), "--num_processes", "2", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    os.environ.update(prepare_multi_gpu_env(args))
    # Version 1 asks for the device it would later initialise on; nothing is put there.
    dataclasses.is_cuda_available, torch.cuda.current_device = (lambda: True), (lambda: 0)
    try:
        found = FullyShardedDataParallelPlugin()
    except ValueError as error:
        return {"error": str(error)}
    strategy = found.sharding_strategy or found.reshard_after_forward
    return {
        "version": found.fsdp_version,
        "strategy": getattr(strategy, "name", strategy),
        "reshard": found.reshard_after_forward if found.fsdp_version == 2 else None,
        "state_dict": found.state_dict_type.name,
        "sync": found.sync_module_states,
        "orig": found.use_orig_params,
        "wrap": found.transformer_cls_names_to_wrap,
    }


def sequences(path: Path) -> dict[str, Any]:
    """The mesh a rank would build under DeepSpeed."""
    arguments = ["--config_file", str(path), "--main_process_ip", "localhost", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    args.deepspeed_fields_from_accelerate_config = ""
    os.environ.update(prepare_deepspeed_cmd_env(args)[1])
    mesh = ParallelismConfig()
    return {
        "on": os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG"),
        "size": mesh.sp_size,
        "backend": mesh.sp_backend,
        "data": mesh.data_parallel_size,
        "length": mesh.sp_handler.sp_seq_length,
        "variable": mesh.sp_handler.sp_seq_length_is_variable,
        "attention": mesh.sp_handler.sp_attn_implementation,
    }


def arguments(path: Path) -> dict[str, Any]:
    """What transformers makes of an emitted training_args.py."""
    spec = importlib.util.spec_from_file_location("training_args", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    args = module.training_arguments(output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[])
    mesh = args.parallelism_config
    return {
        "optim": str(args.optim.value),
        "fsdp": {key: value for key, value in (args.fsdp_plugin_args or {}).items() if isinstance(value, str | bool | int)},
        "sync": (args.accelerator_config.gradient_accumulation_kwargs or {}).get("sync_each_batch"),
        "mesh": [mesh.dp_replicate_size, mesh.dp_shard_size, mesh.sp_size] if mesh else None,
        "checkpointing": args.activation_checkpointing,
    }


def main() -> None:
    answers, clean = {}, dict(os.environ)
    for name in sys.argv[1:]:
        os.environ.clear()
        os.environ.update(clean)
        path = Path(name)
        os.chdir(path.parent)
        kind = {"fsdp.yaml": plugin, "accelerate.yaml": sequences, "training_args.py": arguments}[path.name]
        answers[path.parent.name] = kind(path)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
