"""Puts ds_configs to DeepSpeed's parser and, where that takes them, to its engine on one CPU rank: python ... FILE.

The file is a JSON list of questions; each is ``said`` ``{"error": …, "by": "parser" or "engine"}`` or what came to run.
Beside that are the fields of the parser's ``models``.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import torch
import torch._dynamo
from deepspeed.accelerator import get_accelerator
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.monitor import config as monitor
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder, FusedAdamBuilder
from deepspeed.pipe import PipelineModule
from deepspeed.runtime import precision_config
from deepspeed.runtime.config import DeepSpeedConfig, HybridEngineConfig
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero import offload_config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from transformers import TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

MODELS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.zenflow": ZenFlowConfig,
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
    "fp16": precision_config.DeepSpeedFP16Config,
    "bf16": precision_config.DeepSpeedBF16Config,
    "compile": CompileConfig,
    "tensor_parallel": TPTrainingConfig,
    "hybrid_engine": HybridEngineConfig,
    "tensorboard": monitor.TensorBoardConfig,
    "wandb": monitor.WandbConfig,
    "csv_monitor": monitor.CSVConfig,
    "comet": monitor.CometConfig,
    "comms_logger": CommsLoggerConfig,
}
SMALL = 1_000_000
SCALARS = (bool, int, float, str, torch.dtype)


class Net(torch.nn.Module):
    """Two layers, or one of DeepSpeed's own experts."""

    def __init__(self, *, experts: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = MoE(8, torch.nn.Linear(8, 8), min_capacity=0) if experts else torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.second(torch.relu(self.first(x)))
        return (out[0] if isinstance(out, tuple) else out).float().pow(2).mean()


class Untested(torch.optim.SGD):
    """An optimizer ZeRO has not heard of."""


def parsed(given: dict[str, Any]) -> None:
    """The parser's reading for the job's ranks; what is written twice is read from a file, as json.load would."""
    config: Any = copy.deepcopy(given["config"])
    if twice := given["twice"]:
        pairs = [*config.items(), *((key, config[key]) for key in twice)]
        config = str(Path(tempfile.mkdtemp()) / "ds_config.json")
        Path(config).write_text("{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs) + "}", encoding="utf-8")
    with mock.patch("deepspeed.comm.get_world_size", lambda *_: given["ranks"]):
        DeepSpeedConfig(config)


def compared(given: dict[str, Any]) -> None:
    """The Trainer's comparison of a file with its arguments."""
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=True)
    for name, value in given["arguments"].items():
        setattr(args, name, value)
    file = HfTrainerDeepSpeedConfig(copy.deepcopy(given["config"]))
    file.trainer_config_process(args)
    file.trainer_config_finalize(args, torch.nn.Linear(8, 8), 10)


def optimizer_of(config: dict[str, Any], client: str, model: torch.nn.Module) -> Any:
    """The script's optimizer; none where the file names one. Torch's AdamW stands in for a kernel that only GPUs have."""
    named = config.get("optimizer")
    if isinstance(named, dict) and named.get("type"):
        offloads = isinstance(config.get("zero_optimization"), dict) and config["zero_optimization"].get("offload_optimizer")
        if named["type"] in ("Adam", "AdamW") and not offloads:
            named["params"] = {"torch_adam": True, **named.get("params", {})}
        return None
    kind = torch.optim.AdamW if client.rpartition(".")[2] in ("", "AdamW") else Untested
    groups: Any = {"params": list(model.parameters()), "name": "all"}
    return kind(split_params_into_different_moe_groups_for_optimizer(groups), lr=1e-3)


def ran(given: dict[str, Any]) -> dict[str, Any]:
    """Two optimizer steps of a tiny model; the optimizer's plain attributes, and what else could show an effect."""
    config = copy.deepcopy(given["config"])
    zero = config.get("zero_optimization")
    if isinstance(zero, dict) and zero.get("stage"):
        zero.setdefault("reduce_bucket_size", SMALL)
        if not given["client"] and (zero.get("offload_optimizer") or zero.get("cpu_offload")):
            config.setdefault("optimizer", {"type": "AdamW", "params": {"lr": 1e-3}})
    torch.manual_seed(0)
    model: torch.nn.Module = Net(experts=given["experts"])
    if given["pipeline"]:
        model = PipelineModule([torch.nn.Linear(8, 8)], num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer_of(config, given["client"], model))
    if given["pipeline"]:
        return {"ran": True}
    dtype = next(engine.module.parameters()).dtype
    for _ in range(2 * engine.gradient_accumulation_steps()):
        engine.backward(engine(torch.ones(1, 8, dtype=dtype)))
        engine.step()
    kept = {name: str(value) for name, value in vars(engine.optimizer).items() if value is None or isinstance(value, SCALARS)}
    out = {
        "optimizer": {"class": type(engine.optimizer).__name__, **{k: v for k, v in kept.items() if "time" not in k}},
        "clipping": engine.gradient_clipping(),
        "aio": str(engine._config.aio_config),
        "checkpointing": deepspeed.checkpointing.is_configured(),
        "deepcompile": engine.is_deepcompile_active(),
        "saved": engine.save_16bit_model(tempfile.mkdtemp()) if engine.zero_optimization_stage() == 3 else None,
    }
    engine.destroy()
    return out


def models() -> dict[str, dict[str, Any]]:
    """Fields of the blocks that pydantic guards, by the names they are written under, with their defaults."""
    out = {}
    for block, model in MODELS.items():
        fields = {name: (field.alias, field.get_default(call_default_factory=True)) for name, field in model.model_fields.items()}
        out[block] = {name: [alias, getattr(value, "value", value)] for name, (alias, value) in fields.items()}
    return out


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """One question's answer; a stop of the library is one too."""
    by = "parser"
    device = get_accelerator()
    try:
        if given["arguments"]:
            compared(given)
            return {"ran": True}
        parsed(given)
        if not given["engine"]:
            return {"parsed": True}
        by = "engine"
        has = {f"is_{kind}_supported": mock.Mock(return_value=kind in given["supports"]) for kind in ("bf16", "fp16")}
        with mock.patch.multiple(device, **has):
            return ran(given)
    except Exception as stopped:  # whatever the library raises is what is asked for
        return {"error": f"{type(stopped).__name__}: {stopped}"[:300], "by": by}


def main() -> None:
    logging.disable(logging.ERROR)
    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    deepspeed.init_distributed("gloo")
    # No rule is about what a kernel computes, and a build takes minutes.
    kernel = mock.MagicMock()
    torch._dynamo.config.disable = True  # some of ZeRO's helpers are compiled, seconds each
    with (
        mock.patch.object(FusedAdamBuilder, "load", lambda *_, **__: kernel),
        mock.patch.object(CPUAdamBuilder, "load", lambda *_, **__: kernel),
        mock.patch.object(get_accelerator(), "pin_memory", lambda tensor, *_, **__: tensor),
    ):
        print("\n" + json.dumps({"said": [answer(given) for given in questions], "models": models()}, default=str))


if __name__ == "__main__":
    main()
