"""Takes accelerate.yaml files through accelerate's own launcher, up to the plugin each rank builds: python ... FILE..."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env


def launched(path: Path) -> dict[str, Any]:
    """What a rank would see of one file."""
    # As if on the first node: this machine's number of GPUs is not the plan's.
    arguments = ["--config_file", str(path), "--main_process_ip", "localhost", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    out: dict[str, Any] = {"processes": args.num_processes, "mixed_precision": args.mixed_precision}
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ""
        os.environ.update(prepare_deepspeed_cmd_env(args)[1])
        config = DeepSpeedPlugin().hf_ds_config.config
        return {**out, "stage": config["zero_optimization"]["stage"], "clipping": config["gradient_clipping"]}
    os.environ.update(prepare_multi_gpu_env(args))
    if args.use_fsdp:
        out |= fsdp(FullyShardedDataParallelPlugin())
    if args.use_parallelism_config:
        mesh = ParallelismConfig()
        out["mesh"] = [mesh.dp_replicate_size, mesh.dp_shard_size, mesh.tp_size, mesh.cp_size]
    return out


def fsdp(plugin: FullyShardedDataParallelPlugin) -> dict[str, Any]:
    """The plugin's fields the plan decides."""
    return {
        "version": plugin.fsdp_version,
        "reshard": plugin.reshard_after_forward,
        "offload": type(plugin.cpu_offload).__name__,
        "wrap": plugin.transformer_cls_names_to_wrap,
        "state_dict": str(plugin.state_dict_type.name),
        "checkpointing": plugin.activation_checkpointing,
    }


def main() -> None:
    answers = {}
    clean = dict(os.environ)
    for name in sys.argv[1:]:
        os.environ.clear()
        os.environ.update(clean)
        os.chdir(Path(name).parent)
        answers[Path(name).parent.name] = launched(Path(name))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
