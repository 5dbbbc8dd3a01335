"""accelerate launch, the Hugging Face Trainer and launch.sh really train with the emitted files.

All start from the same weights on the same sequences, so accelerate's losses and norms are compared with those of the
emitted DDP script, and the Trainer's under DeepSpeed with its own without.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.emit.ddp import ddp_script
from app.emit.deepspeed import deepspeed_config
from tests.emit.jobs import make_job
from tests.verify.agreement import assert_same
from tests.verify.conftest import Finetuner, Trainer
from tests.verify.harness import Step, run_command, run_ranks, steps_in, write_files

HERE = Path(__file__).parent
DDP: dict[str, Any] = {"framework": "ddp", "precision": "fp32"}
FSDP2: dict[str, Any] = {"framework": "fsdp2", "precision": "fp32"}
DEEPSPEED: dict[str, Any] = {"framework": "deepspeed", "precision": "fp32", "optimizer_implementation": "foreach"}
ON_TWO = {"world_size": 2, "nodes": 1, "gpus_per_node": 2, "dp_shard": 2, "micro_batch": 4, "grad_accum": 1, "global_batch": 8}
ACCELERATED: dict[str, tuple[dict[str, Any], str]] = {
    "FSDP2": (FSDP2, "FSDP on 2 ranks, each owns 53408"),
    "FSDP2, no reshard, checkpointing": (
        {**FSDP2, "strategy": "fsdp_grad_op", "activation_checkpointing": "full"},
        "FSDP on 2 ranks, each owns 53408",
    ),
    "ZeRO-2": ({**DEEPSPEED, "strategy": "zero2"}, "DEEPSPEED on 2 ranks, each owns 106816"),
    "ZeRO-3": ({**DEEPSPEED, "strategy": "zero3"}, "DEEPSPEED on 2 ranks, each owns 53408"),
}
Weights = Callable[..., Path]


@pytest.mark.files("accelerate.yaml", "accelerate", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize("name", ACCELERATED)
def test_accelerate_launch_trains_as_the_ddp_script(finetuned: Finetuner, weights: Weights, tmp_path: Path, name: str) -> None:
    """A script of the user's own under our YAML: equal steps, gradients alike on both ranks, weights cut as planned."""
    changes, ending = ACCELERATED[name]
    write_files(make_job(**changes, **ON_TWO), tmp_path)
    (tmp_path / "ddp_train.py").write_text(ddp_script(make_job(**DDP)).text, encoding="utf-8")
    config = tmp_path / "ds_config.json"
    if config.exists():
        config.write_text(config.read_text(encoding="utf-8").replace('"lr": 2e-05', '"lr": 0.01'), encoding="utf-8")
    shutil.copy(HERE / "accelerate_train.py", tmp_path / "mine.py")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml"]
    printed = run_command([*launch, "mine.py", str(weights()), "5"], tmp_path)
    assert_same(steps_in(printed), finetuned(2, **DDP))
    assert printed.splitlines()[-1] == ending


@pytest.fixture(scope="module")
def hf_trained(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Callable[[str | None], str]:
    """``hf_trained(strategy)``: what a Trainer on two ranks prints, under our hf_auto config or, with None, without any."""
    known: dict[str | None, str] = {}

    def run(strategy: str | None) -> str:
        if strategy not in known:
            folder, arguments = tmp_path_factory.mktemp("trainer"), [str(weights()), "5"]
            if strategy is not None:
                text = deepspeed_config(make_job(**DEEPSPEED, strategy=strategy), dialect="hf_auto").text
                (folder / "ds_config.json").write_text(text, encoding="utf-8")
                arguments.append("ds_config.json")
            known[strategy] = run_ranks(HERE / "hf_train.py", folder, ranks=2, arguments=arguments)
        return known[strategy]

    return run


@pytest.mark.files("ds_config.json (hf_auto)", "transformers", "accelerate", "deepspeed", "torch")
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_the_trainer_trains_with_our_auto_config(hf_trained: Callable[[str | None], str], strategy: str) -> None:
    """Batch, rate, clipping from TrainingArguments; steps equal to the Trainer's own DDP; the planned stage ran."""
    assert_same(steps_in(hf_trained(strategy)), steps_in(hf_trained(None)))
    assert f"engine DeepSpeedEngine stage {strategy[-1]}" in hf_trained(strategy)
    assert "engine DistributedDataParallel" in hf_trained(None)


@pytest.mark.files("launch.sh", "torch", "deepspeed", "transformers")
@pytest.mark.parametrize("changes", [FSDP2, {**DEEPSPEED, "strategy": "zero2"}], ids=["torchrun", "deepspeed"])
def test_launch_sh_starts_the_script(trained: Trainer, tmp_path: Path, changes: dict[str, Any]) -> None:
    """The launcher the plan names, in processes of their own, trains as the ranks started for the other tests."""
    write_files(make_job(**{**changes, **ON_TWO}), tmp_path)
    printed = run_command(["bash", "launch.sh", "--smoke-test", "--steps", "3"], tmp_path)
    steps = [Step(int(n), float(loss), float(norm)) for n, loss, norm in re.findall(r"step (\d+) loss (\S+) grad_norm (\S+)", printed)]
    assert_same(steps, trained(2, **FSDP2))
