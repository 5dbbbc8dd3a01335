"""Puts configurations of FSDP, accelerate and the Trainer to the libraries, as far as they go before a GPU: python ... FILE.

The file is a JSON list of ``{"kind", "config", "classes", "stored"}``; the answer is what each came to: ``{"error": …}`` or its fields.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed
import transformers
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256, "intermediate_size": 128}
TYPES = {"BertLayer": "bert", "XLMRobertaLayer": "xlm-roberta", "MixtralDecoderLayer": "mixtral"}
LARGE = {"hidden_size": 4096, "num_hidden_layers": 2, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_"))}


def model_of(given: dict[str, Any], *, meta: bool) -> torch.nn.Module:
    """The model of the question: on meta in full size, where only sizes matter, else a tiny one of its class."""
    kind = TYPES.get(given["classes"][0] if given["classes"] else "", "llama")
    with torch.device("meta" if meta else "cpu"):
        if kind in ("llama", "mixtral"):
            sizes = LARGE if meta and kind == "llama" else SMALL | {"num_key_value_heads": 2}
            return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
        return AutoModel.from_config(AutoConfig.for_model(kind, **SMALL))


def prepare(plugin: FullyShardedDataParallelPlugin, given: dict[str, Any]) -> None:
    """What Accelerator.prepare does with the model; stored integers as bitsandbytes would hand them over."""
    second = plugin.fsdp_version == 2
    model = model_of(given, meta=second and plugin.ignored_modules is None)
    plugin.set_auto_wrap_policy(model)
    if second:
        # Weights stay on meta, so there is nothing to broadcast.
        plugin.cpu_ram_efficient_loading = False
        stub = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no", is_main_process=True)
        stub.device, stub.torch_device_mesh = torch.device("cpu"), None
        if plugin.activation_checkpointing:
            model = fsdp2_apply_ac(stub, model)
        fsdp2_prepare_model(stub, model)
        return
    if given["stored"] == "uint8":
        model.stored = torch.nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    FullyShardedDataParallel(
        model,
        sharding_strategy=plugin.sharding_strategy,
        auto_wrap_policy=plugin.auto_wrap_policy,
        use_orig_params=plugin.use_orig_params,
        device_id=torch.device("cpu"),
    )


def fields(plugin: FullyShardedDataParallelPlugin) -> dict[str, Any]:
    """What the plugin came to, before a model is prepared."""
    policy, second = plugin.auto_wrap_policy, plugin.fsdp_version == 2
    sized = policy is size_based_auto_wrap_policy
    return {
        "version": plugin.fsdp_version,
        "strategy": "" if second else plugin.sharding_strategy.name.lstrip("_"),
        "reshard": plugin.reshard_after_forward if second else None,
        "offload": isinstance(plugin.cpu_offload, CPUOffloadPolicy) if second else plugin.cpu_offload.offload_params,
        "state_dict": plugin.state_dict_type.name,
        "checkpointing": plugin.activation_checkpointing,
        "activation_offload": plugin.activation_checkpointing_offload,
        "ram_efficient": bool(plugin.cpu_ram_efficient_loading),
        "wrap": "whole" if policy is None or (sized and plugin.min_num_params == 0) else "size" if sized else "blocks",
        "classes": plugin.transformer_cls_names_to_wrap,
        "prefetch": [str(plugin.backward_prefetch), bool(plugin.forward_prefetch)],
    }


def of_accelerate(given: dict[str, Any]) -> dict[str, Any]:
    """Through accelerate's launcher up to what each rank builds."""
    path = Path("accelerate.yaml")
    path.write_text(yaml.safe_dump(given["config"]), encoding="utf-8")
    words = ["--config_file", str(path), "--main_process_ip", "localhost", "--main_process_port", "0", "train.py"]
    args, defaults, from_file = _validate_launch_command(launch_command_parser().parse_args(words))
    out: dict[str, Any] = {"framework": "deepspeed" if args.use_deepspeed else "fsdp" if args.use_fsdp else "ddp"}
    if args.use_deepspeed:
        said = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(said)
        os.environ.update(prepare_deepspeed_cmd_env(args)[1])
        plugin = DeepSpeedPlugin()
        out["zero"] = plugin.hf_ds_config.config["zero_optimization"]
        out["init"] = plugin.zero3_init_flag
        DeepSpeedZeroConfig(**out["zero"])
    elif args.use_fsdp or args.multi_gpu:
        os.environ.update(prepare_multi_gpu_env(args))
    else:
        os.environ.update(prepare_simple_launcher_cmd_env(args)[1])
    if args.use_fsdp:
        sharding = FullyShardedDataParallelPlugin()
        out |= fields(sharding)
        prepare(sharding, given)
    if args.use_parallelism_config:
        out["mesh"] = mesh(args, second=args.use_fsdp and sharding.fsdp_version == 2)
    return out


def mesh(args: Any, *, second: bool) -> list[int]:
    """Sizes that arrive, held against the kind of job and its processes as Accelerator does."""
    sizes = ParallelismConfig()
    kind = DistributedType.DEEPSPEED if args.use_deepspeed else DistributedType.FSDP if args.use_fsdp else DistributedType.MULTI_GPU
    job = SimpleNamespace(multi_device=kind == DistributedType.MULTI_GPU, distributed_type=kind, is_fsdp2=second, is_main_process=True)
    job.num_processes = args.num_processes
    sizes._validate_accelerator(job)
    return [sizes.dp_replicate_size, sizes.dp_shard_size, sizes.tp_size, sizes.cp_size, sizes.sp_size]


def of_trainer(given: dict[str, Any]) -> dict[str, Any]:
    """Through TrainingArguments and the Trainer's own checks, with an Accelerator that only keeps its plugins."""
    config = {"output_dir": "out", "report_to": [], **given["config"], "use_cpu": True}
    config.pop("ddp_backend", None)  # there is none for GPUs here
    args = TrainingArguments(**config)
    out: dict[str, Any] = {"framework": "deepspeed" if args.deepspeed else "fsdp" if args.fsdp_plugin_args else "ddp"}
    if args.fsdp_plugin_args:
        out |= fields(FullyShardedDataParallelPlugin(**args.fsdp_plugin_args))

    def accelerator(**more: Any) -> Any:
        deepspeed = args.deepspeed_plugin
        # What the Trainer looks at: which plugin there is, and whether ranks share the model.
        state = SimpleNamespace(fsdp_plugin=more.get("fsdp_plugin"), deepspeed_plugin=deepspeed)
        return SimpleNamespace(state=state, gather_for_metrics=lambda *_: None, parallelism_config=None)

    distributed = mock.patch.object(TrainingArguments, "parallel_mode", transformers.training_args.ParallelMode.DISTRIBUTED)
    with mock.patch("transformers.trainer.Accelerator", accelerator), distributed:
        maker = SimpleNamespace(args=args, model=model_of(given, meta=False), is_fsdp_xla_enabled=False)
        maker._build_accelerator_args = lambda **more: more
        Trainer.create_accelerator_and_postprocess(maker)
        if args.fsdp and args.deepspeed:
            Trainer(model=maker.model, args=args)
    if args.fsdp_plugin_args:
        prepare(FullyShardedDataParallelPlugin(**args.fsdp_plugin_args), given)
    return out


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """One question's answer; a stop of the library is one too."""
    os.environ.clear()
    os.environ.update(CLEAN)
    try:
        return of_trainer(given) if given["kind"] == "hf_trainer" else of_accelerate(given)
    except Exception as stopped:  # whatever the library raises is what is asked for
        return {"error": f"{type(stopped).__name__}: {stopped}"[:300]}


def main() -> None:
    torch.distributed.init_process_group("gloo")
    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.chdir(tempfile.mkdtemp())
    Path("ds_config.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    with (
        # No GPU is asked for: the plugin only notes which one it would fill, and fp8 only whether its library is there.
        mock.patch("accelerate.utils.dataclasses.is_cuda_available", return_value=True),
        mock.patch("torch.cuda.current_device", return_value=0),
        mock.patch("accelerate.utils.launch.is_fp8_available", return_value=True),
    ):
        print(json.dumps([answer(given) for given in questions], default=str))


if __name__ == "__main__":
    main()
